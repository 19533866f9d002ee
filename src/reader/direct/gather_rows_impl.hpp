#pragma once

#include <cstddef>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table_view.hpp"

// The two halves of gather_rows. Arguments have been checked; there is at least one staging row. A
// build without CUDA never calls gather_rows_cuda, so that it needs no definition.
namespace penstock::detail {

void gather_rows_cpu(const TableView& table, const RowIds& ids, RowFormat format, std::byte* out);

void gather_rows_cuda(const TableView& table, const RowIds& ids, RowFormat format, std::byte* out,
                      Device device, StreamRef stream, const GatherOptions& options);

std::size_t gather_workspace_bytes_cuda(const TableView& table, std::int64_t tokens);

}  // namespace penstock::detail
