#pragma once

#include <cstdint>

namespace penstock::detail {

/// A random number of this process, which tells whether two ranks live in one.
std::uint64_t process_token();

}  // namespace penstock::detail
