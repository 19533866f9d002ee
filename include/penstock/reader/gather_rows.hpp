#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/table/table_view.hpp"

namespace penstock {

/// Row ids of a step, as the hasher writes them: [tokens, layers, columns], one layer picked.
struct RowIds {
  const std::int32_t* data = nullptr;  ///< Column 0 of token 0.
  std::int64_t tokens = 0;
  int columns = 0;                ///< All global columns of the layer.
  std::int64_t token_stride = 0;  ///< In ids.
};

/// What a staging row holds.
enum class RowFormat {
  Bf16,    ///< head_dim bf16 numbers.
  Packed,  ///< The row record, byte for byte (row_record_bytes).
};

/// Bytes of one staging row.
std::int64_t staging_row_bytes(const TableView& table, RowFormat format);

/// Knobs of the CUDA reader; the CPU ignores them.
struct GatherOptions {
  /// Thread blocks; 0 takes what saturates the memory that the table lies in.
  int blocks = 0;
  /// Device memory with the number of tokens to read, at most RowIds::tokens; null: all of them.
  /// Lets one captured graph serve every token count.
  const std::int32_t* num_tokens = nullptr;
  /// Device memory of gather_workspace_bytes(), aligned to 256 bytes: lets a large read of a table in
  /// host memory go through it from begin to end, in 0.55 to 0.75 of the time. Empty: as ids come.
  std::span<std::byte> workspace = {};
};

/// Bytes of GatherOptions::workspace for reads of up to `tokens` tokens; 0 where it would not help.
///
/// Errors: InvalidArgument for tokens < 0 or 2^31 rows; Unsupported for CUDA in a build without it.
std::size_t gather_workspace_bytes(const TableView& table, std::int64_t tokens, Device device);

/// Reads the shard's rows of every token.
///
/// Shapes: ids [T, columns]; out [T, local_columns, staging_row_bytes].
/// Device: ids and out lie on `device`; the table is readable from it.
/// Range:  -1, a row that the shard does not hold and a padded column give zero bytes, which are
///         written. An id outside [-1, num_rows) gives zeros and is counted in `table.rejected`.
///         A NaN code gives bf16 0x7FC0.
/// Async:  on CUDA one kernel is enqueued on `stream`, or a few with a workspace; ids, out, workspace
///         and table must outlive it. Legal in capture, with a workspace once such a read has run
///         outside of one. On the CPU the rows are written on return.
/// Errors: InvalidArgument for sizes that do not fit, before anything is written; Unsupported for
///         CUDA in a build without it.
void gather_rows(const TableView& table, const RowIds& ids, RowFormat format,
                 std::span<std::byte> out, Device device, StreamRef stream = {},
                 const GatherOptions& options = {});

/// Dequantises rows that are given as split arrays.
///
/// Shapes: values [n, head_dim] e4m3 codes, scales [n, head_dim / 32] bytes, out [n, head_dim] bf16.
/// Device: CPU.
/// Errors: InvalidArgument for sizes that do not fit, or a head_dim that is no positive multiple of
///         32.
void dequantize_rows(std::span<const std::byte> values, std::span<const std::byte> scales,
                     int head_dim, std::span<std::byte> out);

/// Turns row records into bf16 rows.
///
/// Shapes: records [n, row_record_bytes(head_dim)], out [n, head_dim] bf16.
/// Device: CPU.
/// Errors: as dequantize_rows.
void unpack_rows(std::span<const std::byte> records, int head_dim, std::span<std::byte> out);

}  // namespace penstock
