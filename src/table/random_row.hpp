#pragma once

#include <cstdint>

#include "core/mix_bits.hpp"

// The pure function behind make_random_rows: the row record of (seed, layer id, row id) as 64-bit
// little-endian words. Plain integer arithmetic, so that host and device agree.
namespace penstock::detail {

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

/// Scale byte `index` of a row whose values take `value_words` words: 109 to 121, so that values are
/// of the size of a residual stream or smaller.
constexpr std::uint8_t random_scale(std::uint64_t row_key, int value_words, int index) {
  const std::uint64_t word =
      mix_bits(row_key + static_cast<std::uint64_t>(value_words + 1 + index / 8) * kGoldenGamma);
  const std::uint64_t byte = (word >> (8 * (index % 8))) & 0xFF;
  return static_cast<std::uint8_t>(109 + ((byte * 13) >> 8));
}

}  // namespace penstock::detail
