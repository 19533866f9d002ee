#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/core/stream.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table_view.hpp"

// The order in which a large read goes through a table in host memory. A GPU reaches host memory
// through translations of addresses, of which it keeps those of a GiB or two and pays for every
// other one; a table is many times as large. So the rows of a step are sorted, coarsely, by where
// they lie: those of one window of the table come together, and what one of them has had translated
// serves the next. Figures are in docs/measurements/2026-11-30-h200.md.
namespace penstock::detail {

/// A row of a read: its id, and where its bytes go.
struct OrderedRow {
  std::int32_t id = -1;
  std::uint32_t staging_row = 0;
};

/// Bits of a window's number: of 4,096 windows, one of a table of 94 GiB is 24 MiB. The sort takes 8
/// bits a pass; the windows of one pass are too large for such a table, a third pass gains nothing.
inline constexpr int kWindowBits = 12;

/// Bytes from the first row of a shard to its last.
constexpr std::int64_t shard_bytes(const TableView& table) {
  return (table.row_end - table.row_begin) * table.value_stride;
}

/// Whether sorting pays for a read of up to `rows` rows: there is at least one for each MiB of the
/// table, so that neighbours are found, and more than a few.
bool order_pays(const TableView& table, std::int64_t rows);

/// Device memory that order_rows needs for up to `rows` rows.
std::size_t order_bytes(std::int64_t rows);

/// Sorts the rows of a read on the current device by where they lie. The result lies in
/// `workspace`, [tokens * local_columns]; rows of tokens past *num_tokens are somewhere in it.
///
/// Range:  a table of one part; `workspace` of order_bytes() bytes, aligned to 256; window_bits from
///         1 to 16.
/// Async:  a few kernels on `stream`. Legal in capture once load_order_kernels() has run.
const OrderedRow* order_rows(const TableView& table, const RowIds& ids,
                             std::span<std::byte> workspace, StreamRef stream,
                             int window_bits = kWindowBits);

/// Runs every kernel that reads of up to `rows` rows take, so that none is loaded inside a capture.
/// Waits for the stream.
void load_order_kernels(std::int64_t rows, std::span<std::byte> workspace, StreamRef stream);

}  // namespace penstock::detail
