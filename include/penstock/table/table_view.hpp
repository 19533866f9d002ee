#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

/// Bytes of a row record: `head_dim` e4m3 codes, `head_dim / 32` scale bytes, then zero bytes up to
/// a multiple of 8. 264 for V4.1. See `docs/formats/row_record.md`.
constexpr std::int64_t row_record_bytes(int head_dim) {
  return (std::int64_t{head_dim} + head_dim / 32 + 7) / 8 * 8;
}

/// What a reader needs to know of a shard: plain values, copied into kernels.
///
/// Rows lie either as records (values and scales side by side) or, for the `file` placement, as the
/// checkpoint's two arrays; both are (values, scales) pointers with their own strides. A table that
/// is spread over several memories (`peer`) has one part per memory.
struct TableView {
  static constexpr int kMaxParts = 16;

  // Plain arrays, because kernels index them.
  // NOLINTBEGIN(modernize-avoid-c-arrays)
  const std::byte* values[kMaxParts] = {};  ///< Row `row_begin + p * rows_per_part` of part p.
  const std::byte* scales[kMaxParts] = {};
  // NOLINTEND(modernize-avoid-c-arrays)
  int num_parts = 1;
  std::int64_t rows_per_part = 0;  ///< >= row_end - row_begin when there is one part.
  std::int64_t value_stride = 0;   ///< Bytes from one row's values to the next's.
  std::int64_t scale_stride = 0;
  std::int64_t row_begin = 0;  ///< Row ids held: [row_begin, row_end).
  std::int64_t row_end = 0;
  std::int64_t num_rows = 0;  ///< Rows of the whole table; ids outside [-1, num_rows) are counted.
  int head_dim = 0;
  int column_begin = 0;               ///< First global column of the shard.
  int column_end = 0;                 ///< Exclusive.
  int local_columns = 0;              ///< Columns of a staging row, >= column_end - column_begin.
  bool in_host_memory = false;        ///< CUDA reads it over the bus; only the grid depends on it.
  std::uint64_t* rejected = nullptr;  ///< Counter of ids out of range; where the reader runs.

  /// Whether values and scales lie side by side as row records.
  constexpr bool is_packed() const { return value_stride == scale_stride; }
};

}  // namespace penstock
