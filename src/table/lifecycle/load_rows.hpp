#pragma once

#include <cstddef>

#include "penstock/table/column_shards.hpp"
#include "penstock/table/row_source.hpp"
#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

/// Writes the records of `range` to `out`, on several threads, straight from the source.
///
/// Shapes: out [range.end - range.begin, row_record_bytes(rows.head_dim())].
/// Errors: what the source throws; PeerFailed once stopped.
void load_rows(const RowSource& rows, RowRange range, std::byte* out, const StopFlag& stop);

}  // namespace penstock::detail
