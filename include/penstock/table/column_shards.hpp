#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

/// The rows of a contiguous range of columns.
struct ColumnShard {
  int column_start = 0;
  int column_end = 0;          ///< Exclusive; at most the number of columns.
  std::int64_t row_start = 0;  ///< First row id of column_start.
  std::int64_t row_end = 0;    ///< Exclusive.
  int local_columns = 0;  ///< Columns of a staging row: equal on all shards, padded with zeros.

  friend bool operator==(const ColumnShard&, const ColumnShard&) = default;
};

/// Cuts the columns of a table into `shards` runs of ceil(columns / shards) columns.
///
/// Shapes: head_sizes [columns], the rows of each column; returns `shards` entries.
/// Errors: InvalidArgument if a shard would be empty, that is (shards - 1) * local_columns >=
///         columns; the message says which numbers of shards are legal.
std::vector<ColumnShard> column_shards(std::span<const std::int64_t> head_sizes, int shards);

/// Whether column_shards would succeed.
bool has_column_shards(int columns, int shards);

/// The numbers of shards for which it would, ascending; none for fewer than one column.
std::vector<int> legal_column_shards(int columns);

/// A range of row ids.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;  ///< Exclusive.

  friend bool operator==(const RowRange&, const RowRange&) = default;
};

/// The row ids of a row shard: [shard * rows / shards, (shard + 1) * rows / shards).
///
/// Errors: InvalidArgument unless 0 <= shard < shards and rows >= 0.
RowRange row_shard(std::int64_t rows, int shard, int shards);

}  // namespace penstock
