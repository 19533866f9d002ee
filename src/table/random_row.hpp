#pragma once

#include <cstdint>

// The pure function behind make_random_rows: the row record of (seed, layer id, row id) as 64-bit
// little-endian words. Plain integer arithmetic, so that host and device agree.
namespace penstock::detail {

inline constexpr std::uint64_t kGoldenGamma = 0x9E3779B97F4A7C15;

/// The finaliser of splitmix64: a bijection whose output bits all depend on all input bits.
constexpr std::uint64_t mix_bits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

constexpr std::uint64_t random_layer_key(std::uint64_t seed, int layer_id) {
  return mix_bits(mix_bits(seed) + static_cast<std::uint64_t>(layer_id) * kGoldenGamma);
}

constexpr std::uint64_t random_row_key(std::uint64_t layer_key, std::int64_t row_id) {
  return mix_bits(layer_key ^ (static_cast<std::uint64_t>(row_id) * kGoldenGamma));
}

/// Eight e4m3 codes, none of them NaN: word `index` of a row's values.
constexpr std::uint64_t random_codes(std::uint64_t row_key, int index) {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  const std::uint64_t word =
      mix_bits(row_key + static_cast<std::uint64_t>(index + 1) * kGoldenGamma);
  // Adding 1 to the low 7 bits of a byte carries into its top bit only from 0x7F, the NaN.
  const std::uint64_t is_nan = (((word & (kOnes * 0x7F)) + kOnes) >> 7) & kOnes;
  return word ^ is_nan;
}

/// Scale byte `index` of a row whose values take `value_words` words: 118 to 130.
constexpr std::uint8_t random_scale(std::uint64_t row_key, int value_words, int index) {
  const std::uint64_t word =
      mix_bits(row_key + static_cast<std::uint64_t>(value_words + 1 + index / 8) * kGoldenGamma);
  const std::uint64_t byte = (word >> (8 * (index % 8))) & 0xFF;
  return static_cast<std::uint8_t>(118 + ((byte * 13) >> 8));
}

}  // namespace penstock::detail
