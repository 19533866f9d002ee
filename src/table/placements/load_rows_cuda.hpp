#pragma once

#include <cstddef>

#include "penstock/core/device.hpp"
#include "penstock/table/column_shards.hpp"
#include "penstock/table/row_source.hpp"
#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

/// Like load_rows, into the memory of a GPU. Goes through two pinned buffers: one is filled on
/// several threads while the other one is copied.
///
/// Errors: what the source throws; OutOfMemory, System; PeerFailed once stopped.
/// Cost:   2 * 64 MiB of pinned memory while it runs.
void load_rows_cuda(const RowSource& rows, RowRange range, std::byte* out, Device device,
                    const StopFlag& stop);

}  // namespace penstock::detail
