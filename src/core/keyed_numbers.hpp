#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/core/dtype.hpp"

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

/// The key of part `part` of a layer.
constexpr std::uint64_t layer_key(std::uint64_t seed, int layer_id, std::uint64_t part) {
  return mix_bits(mix_bits(seed) + static_cast<std::uint64_t>(layer_id) * kGoldenGamma + part);
}

/// The key of a row below `key`.
constexpr std::uint64_t row_key(std::uint64_t key, std::int64_t row) {
  return mix_bits(key ^ (static_cast<std::uint64_t>(row) * kGoldenGamma));
}

/// Word `index` of the row with that key.
constexpr std::uint64_t word_of_row(std::uint64_t row_key, std::int64_t index) {
  return mix_bits(row_key + static_cast<std::uint64_t>(index + 1) * kGoldenGamma);
}

/// Eight bytes, each with the value of `byte`.
constexpr std::uint64_t repeat_byte(std::uint8_t byte) {
  return 0x0101010101010101U * byte;
}

/// Eight e4m3 codes out of all but the NaNs.
constexpr std::uint64_t finite_codes(std::uint64_t word) {
  // Adding 1 to the low 7 bits of a byte carries into its top bit only from 0x7F, the NaN.
  const std::uint64_t is_nan =
      (((word & repeat_byte(0x7F)) + repeat_byte(1)) >> 7) & repeat_byte(1);
  return word ^ is_nan;
}

/// A number between -0.5 and 0.5, evenly spread.
constexpr float even_number(std::uint64_t word) {
  return static_cast<float>(word >> 40) * 0x1p-24F - 0.5F;
}

/// Fills `out` with even numbers: operands of a product whose values do not matter.
inline void fill_even_numbers(std::span<BF16> out, std::uint64_t key) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = to_bf16(even_number(mix_bits(key + i * kGoldenGamma)));
  }
}

}  // namespace penstock::detail
