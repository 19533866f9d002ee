#pragma once

#include <cstdint>
#include <string>

namespace penstock::cli {

/// Bytes for people: "264 bytes", "44.0 MiB", "94.42 GiB".
std::string byte_count(std::uint64_t bytes);

}  // namespace penstock::cli
