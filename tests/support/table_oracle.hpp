#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

// Naive references for tables and readers, written from docs/formats/row_record.md in plain double
// arithmetic. They never call the library.
namespace penstock::oracle {

inline double e4m3(std::uint8_t code) {
  const int exponent = (code >> 3) & 15;
  const int fraction = code & 7;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(1.0 + fraction / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

inline double scale(std::uint8_t byte) {
  if (byte == 0) return 0.0;
  if (byte == 255) return std::numeric_limits<double>::infinity();
  return std::ldexp(1.0, byte - 127);
}

/// The bits of the bf16 number nearest to `value`; ties go to the even one; NaN is 0x7FC0.
inline std::uint16_t bf16(double value) {
  if (std::isnan(value)) return 0x7FC0;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::abs(value);
  if (magnitude == 0) return sign;
  const int exponent = std::isinf(magnitude) ? 128 : std::max(std::ilogb(magnitude), -126);
  // Numbers of this binade lie 2^(exponent - 7) apart.
  const double steps =
      std::isinf(magnitude) ? 0 : std::nearbyint(std::ldexp(magnitude, 7 - exponent));
  const double rounded = std::ldexp(steps, exponent - 7);
  if (exponent >= 128 || rounded >= std::ldexp(1.0, 128)) return sign | 0x7F80;
  const auto single = static_cast<float>(rounded);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &single, sizeof(bits));
  return static_cast<std::uint16_t>(sign | (bits >> 16));
}

inline std::uint16_t dequantize(std::uint8_t code, std::uint8_t scale_byte) {
  return bf16(e4m3(code) * scale(scale_byte));
}

/// A whole table as split arrays, whatever shard the code under test holds.
struct WholeTable {
  int head_dim = 0;
  std::vector<std::int64_t> head_sizes;
  std::vector<std::uint8_t> values;  ///< [rows, head_dim]
  std::vector<std::uint8_t> scales;  ///< [rows, head_dim / 32]
};

/// What a reader of the shard must put into staging.
struct ShardBounds {
  int column_begin = 0;
  int column_end = 0;
  int local_columns = 0;
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
};

/// Staging of one (token, column) pair: bf16 numbers or a row record, as bytes.
inline std::vector<std::byte> staging_row(const WholeTable& table, const ShardBounds& shard,
                                          const std::int32_t* token_ids, int local_column,
                                          bool is_packed) {
  const auto dim = static_cast<std::size_t>(table.head_dim);
  const std::size_t record = (dim + dim / 32 + 7) / 8 * 8;
  std::vector<std::byte> out(is_packed ? record : 2 * dim, std::byte{0});
  const int column = shard.column_begin + local_column;
  if (column >= shard.column_end) return out;
  const std::int64_t id = token_ids[column];
  if (id < shard.row_begin || id >= shard.row_end) return out;
  const std::uint8_t* values = table.values.data() + static_cast<std::size_t>(id) * dim;
  const std::uint8_t* scales = table.scales.data() + static_cast<std::size_t>(id) * (dim / 32);
  for (std::size_t i = 0; i < dim; ++i) {
    if (is_packed) {
      out[i] = std::byte{values[i]};
      out[dim + i / 32] = std::byte{scales[i / 32]};
      continue;
    }
    const std::uint16_t bits = dequantize(values[i], scales[i / 32]);
    std::memcpy(out.data() + 2 * i, &bits, sizeof(bits));
  }
  return out;
}

}  // namespace penstock::oracle
