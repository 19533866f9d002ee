#pragma once

#include <cstdint>

namespace penstock::detail {

__extension__ typedef unsigned __int128 UInt128;  // NOLINT(modernize-use-using): no __extension__

/// The high 64 bits of the 128-bit product.
constexpr std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  return static_cast<std::uint64_t>((static_cast<UInt128>(a) * b) >> 64);
}

}  // namespace penstock::detail
