#include "penstock/table/column_shards.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <string>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

int columns_per_shard(int columns, int shards) {
  return columns / shards + (columns % shards == 0 ? 0 : 1);
}

/// First row of each column, and the end of the last.
std::vector<std::int64_t> row_bounds(std::span<const std::int64_t> head_sizes) {
  std::vector<std::int64_t> bounds{0};
  bounds.reserve(head_sizes.size() + 1);
  for (const std::int64_t rows : head_sizes) {
    const bool fits = rows >= 0 && rows <= std::numeric_limits<std::int64_t>::max() - bounds.back();
    expects(fits,
            fmt::format("column_shards: column {} has {} rows, needed: a count >= 0 whose sum "
                        "over the columns fits into 63 bits",
                        bounds.size() - 1, rows));
    bounds.push_back(bounds.back() + rows);
  }
  return bounds;
}

}  // namespace

bool has_column_shards(int columns, int shards) {
  if (columns < 1 || shards < 1) return false;
  return (std::int64_t{shards} - 1) * columns_per_shard(columns, shards) < columns;
}

std::vector<int> legal_column_shards(int columns) {
  std::vector<int> legal;
  for (int shards = 1; shards <= columns; ++shards) {
    if (has_column_shards(columns, shards)) legal.push_back(shards);
  }
  return legal;
}

std::vector<ColumnShard> column_shards(std::span<const std::int64_t> head_sizes, int shards) {
  constexpr std::size_t kMaxColumns = std::numeric_limits<int>::max();
  expects(!head_sizes.empty() && head_sizes.size() <= kMaxColumns,
          "column_shards: found no columns, needed: at least one");
  expects(shards >= 1, fmt::format("column_shards: found {} shards, needed: at least one", shards));
  const int columns = static_cast<int>(head_sizes.size());
  if (!has_column_shards(columns, shards)) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("column_shards: {} shards of {} columns leave a shard without a column; "
                    "needed: one of {}",
                    shards, columns, fmt::join(legal_column_shards(columns), ", ")));
  }
  const std::vector<std::int64_t> bounds = row_bounds(head_sizes);
  const int local_columns = columns_per_shard(columns, shards);
  std::vector<ColumnShard> result;
  result.reserve(static_cast<std::size_t>(shards));
  for (int start = 0; start < columns; start += local_columns) {
    const int end = std::min(columns, start + local_columns);
    result.push_back({.column_start = start,
                      .column_end = end,
                      .row_start = bounds[static_cast<std::size_t>(start)],
                      .row_end = bounds[static_cast<std::size_t>(end)],
                      .local_columns = local_columns});
  }
  return result;
}

RowRange row_shard(std::int64_t rows, int shard, int shards) {
  expects(
      rows >= 0 && shards >= 1 && shard >= 0 && shard < shards,
      fmt::format("row_shard: found shard {} of {} over {} rows, needed: 0 <= shard < shards and "
                  "rows >= 0",
                  shard, shards, rows));
  // rows * k / shards without the product, which may not fit into 64 bits.
  const auto bound = [&](std::int64_t k) { return rows / shards * k + rows % shards * k / shards; };
  return {.begin = bound(shard), .end = bound(std::int64_t{shard} + 1)};
}

}  // namespace penstock
