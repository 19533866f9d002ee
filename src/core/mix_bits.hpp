#pragma once

#include <cstdint>

// Numbers that look random and are a pure function of their key: synthetic rows and weights can be
// made in any order, on any thread, on host and device.
namespace penstock::detail {

inline constexpr std::uint64_t kGoldenGamma = 0x9E3779B97F4A7C15;

/// The finaliser of splitmix64: a bijection whose output bits all depend on all input bits.
constexpr std::uint64_t mix_bits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace penstock::detail
