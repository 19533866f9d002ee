#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "penstock/core/parallel.hpp"
#include "reader/direct/dequantize_row.hpp"
#include "reader/direct/gather_rows_impl.hpp"
#include "table/row_record.hpp"

namespace penstock::detail {
namespace {

constexpr std::int64_t kRowGrain = 64;

// Rows whose cache lines are asked for before they are needed. Random rows of a large table miss
// every cache; this many misses overlap.
constexpr std::int64_t kRowsAhead = 16;
constexpr std::int64_t kCacheLine = 64;

/// Where one staging row comes from.
struct SourceRow {
  const std::byte* values = nullptr;  ///< Null: a zero row.
  const std::byte* scales = nullptr;
};

void prefetch_bytes(const std::byte* data, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(data + at);
  __builtin_prefetch(data + bytes - 1);  // the row may begin in the middle of a line
}

/// Turns staging rows [begin, end) into source rows, in order, and counts ids out of range.
class RowFinder {
 public:
  RowFinder(const TableView& table, const RowIds& ids, std::int64_t first)
      : table_(table),
        ids_(ids),
        token_(first / table.local_columns),
        column_(static_cast<int>(first % table.local_columns)) {}

  SourceRow next() {
    const SourceRow row = find(table_.column_begin + column_);
    if (++column_ == table_.local_columns) {
      column_ = 0;
      ++token_;
    }
    return row;
  }

  std::uint64_t rejected() const { return rejected_; }

 private:
  SourceRow find(int column) {
    if (column >= table_.column_end) return {};
    const std::int64_t id = ids_.data[token_ * ids_.token_stride + column];
    if (id < table_.row_begin || id >= table_.row_end) {
      if (id < -1 || id >= table_.num_rows) ++rejected_;
      return {};
    }
    std::int64_t row = id - table_.row_begin;
    std::int64_t part = 0;
    if (table_.num_parts > 1) {
      part = row / table_.rows_per_part;
      row -= part * table_.rows_per_part;
    }
    const SourceRow found{table_.values[part] + row * table_.value_stride,
                          table_.scales[part] + row * table_.scale_stride};
    prefetch_bytes(found.values, table_.head_dim);
    prefetch_bytes(found.scales, table_.head_dim / 32);
    return found;
  }

  const TableView& table_;
  const RowIds& ids_;
  std::int64_t token_;
  int column_;
  std::uint64_t rejected_ = 0;
};

/// Writes one staging row.
class RowWriter {
 public:
  RowWriter(const TableView& table, RowFormat format)
      : format_(format),
        head_dim_(table.head_dim),
        row_bytes_(static_cast<std::size_t>(staging_row_bytes(table, format))),
        is_record_(table.is_packed()) {}

  std::size_t row_bytes() const { return row_bytes_; }

  void write(SourceRow row, std::byte* out) const {
    if (row.values == nullptr) {
      std::memset(out, 0, row_bytes_);
      return;
    }
    switch (format_) {
      case RowFormat::Bf16: dequantize_row(row.values, row.scales, head_dim_, out); return;
      case RowFormat::Packed: write_record(row, out); return;
    }
  }

 private:
  void write_record(SourceRow row, std::byte* out) const {
    if (is_record_) {
      std::memcpy(out, row.values, row_bytes_);
      return;
    }
    write_row_record(row.values, row.scales, head_dim_, out);
  }

  RowFormat format_;
  int head_dim_;
  std::size_t row_bytes_;
  bool is_record_;
};

/// Writes staging rows [begin, end); returns how many ids were out of range.
std::uint64_t gather_range(const TableView& table, const RowIds& ids, const RowWriter& writer,
                           std::int64_t begin, std::int64_t end, std::byte* out) {
  RowFinder finder(table, ids, begin);
  std::array<SourceRow, kRowsAhead> ahead;
  const auto slot = [&](std::int64_t row) -> SourceRow& {
    return ahead[static_cast<std::size_t>(row % kRowsAhead)];
  };
  std::int64_t found = begin;
  for (std::int64_t row = begin; row < end; ++row) {
    for (; found < end && found < row + kRowsAhead; ++found) slot(found) = finder.next();
    writer.write(slot(row), out + row * static_cast<std::int64_t>(writer.row_bytes()));
  }
  return finder.rejected();
}

}  // namespace

void gather_rows_cpu(const TableView& table, const RowIds& ids, RowFormat format, std::byte* out) {
  const RowWriter writer(table, format);
  parallel_for(ids.tokens * table.local_columns, kRowGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 const auto rejected = gather_range(table, ids, writer, begin, end, out);
                 if (rejected == 0 || table.rejected == nullptr) return;
                 std::atomic_ref(*table.rejected).fetch_add(rejected, std::memory_order_relaxed);
               });
}

}  // namespace penstock::detail
