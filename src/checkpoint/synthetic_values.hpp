#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/keyed_numbers.hpp"

// The numbers of a synthetic model, each a pure function of its place.
namespace penstock::detail {

static_assert(std::endian::native == std::endian::little, "words are stored as they are");

/// Most rows are usual; three in 64 hold what rounding and sign handling stumble over.
enum class RowKind { Usual, Subnormals, Zeros, WholeRange };

constexpr RowKind row_kind(std::uint64_t row_key) {
  switch (row_key % 64) {
    case 0: return RowKind::Subnormals;
    case 1: return RowKind::Zeros;
    case 2: return RowKind::WholeRange;
    default: return RowKind::Usual;
  }
}

/// Eight codes of either sign with magnitudes from 0.25 to 3.75, evenly spread over their bits.
constexpr std::uint64_t usual_codes(std::uint64_t word) {
  return (word & repeat_byte(0x9F)) + repeat_byte(0x28);
}

constexpr std::uint64_t codes_of_kind(RowKind kind, std::uint64_t word) {
  switch (kind) {
    case RowKind::Usual: return usual_codes(word);
    case RowKind::Subnormals: return word & repeat_byte(0x87);
    case RowKind::Zeros: return word & repeat_byte(0x80);
    case RowKind::WholeRange: return finite_codes(word);
  }
  return 0;
}

/// The e4m3 codes of a table row. Range: the size of `out` is a multiple of 8.
inline void fill_table_codes(std::uint64_t key, std::span<std::byte> out) {
  const RowKind kind = row_kind(key);
  for (std::size_t at = 0; at < out.size(); at += 8) {
    const std::uint64_t word =
        codes_of_kind(kind, word_of_row(key, static_cast<std::int64_t>(at / 8)));
    std::memcpy(out.data() + at, &word, 8);
  }
}

/// The scale bytes of a table row: 118 to 130, and 118 to 121 where the codes go up to 448, so that
/// no row outweighs the others.
inline void fill_table_scales(std::uint64_t key, std::span<std::byte> out) {
  constexpr std::int64_t kAfterCodes = 1 << 20;
  const std::uint64_t choices = row_kind(key) == RowKind::WholeRange ? 4 : 13;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t word = word_of_row(key, kAfterCodes + static_cast<std::int64_t>(i / 8));
    const std::uint64_t byte = (word >> (8 * (i % 8))) & 0xFF;
    out[i] = static_cast<std::byte>(118 + ((byte * choices) >> 8));
  }
}

/// A number of mean 0 and standard deviation 1, nearly normal: the sum of four even ones.
inline float normal_number(std::uint64_t word) {
  constexpr float kMeanOfSum = 2.0F * 65535.0F;
  constexpr float kDeviationOfSum = 37836.68F;  // 65536 / sqrt(3)
  const std::uint64_t sum =
      (word & 0xFFFF) + ((word >> 16) & 0xFFFF) + ((word >> 32) & 0xFFFF) + (word >> 48);
  return (static_cast<float>(sum) - kMeanOfSum) / kDeviationOfSum;
}

}  // namespace penstock::detail
