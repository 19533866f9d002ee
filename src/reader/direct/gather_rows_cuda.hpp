#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/core/stream.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table_view.hpp"
#include "reader/direct/gather_plan.hpp"
#include "reader/direct/row_order.hpp"

namespace penstock::detail {

/// Whether the kernels for rows of 256 codes can read this table, into memory that is aligned to 16
/// bytes; only they read in order.
bool has_fast_rows(const TableView& table);

/// Reads rows on the current device with the grid that `plan` gives. Arguments are those of
/// gather_rows, already checked; `order`: of all rows, from order_rows(), null for none.
void gather_rows_planned(const TableView& table, const RowIds& ids, RowFormat format,
                         std::byte* out, const std::int32_t* num_tokens, const GatherPlan& plan,
                         StreamRef stream, const OrderedRow* order = nullptr);

/// The same with the grid that plan_gather() chooses.
void gather_rows_in_order(const TableView& table, const RowIds& ids, RowFormat format,
                          std::byte* out, Device device, StreamRef stream,
                          const GatherOptions& options, const OrderedRow* order);

/// Loads every kernel of the reader, so that none is loaded inside a capture.
void load_gather_kernels();

}  // namespace penstock::detail
