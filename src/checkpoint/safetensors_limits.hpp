#pragma once

#include <cstdint>

namespace penstock::detail {

/// A file starts with the header's length, a little-endian 64-bit number.
inline constexpr std::uint64_t kLengthBytes = 8;

/// The limit that the format's own library sets.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

}  // namespace penstock::detail
