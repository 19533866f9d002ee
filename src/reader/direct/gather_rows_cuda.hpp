#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/core/stream.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table_view.hpp"
#include "reader/direct/gather_plan.hpp"

namespace penstock::detail {

/// Reads rows on the current device with the grid that `plan` gives. Arguments are those of
/// gather_rows, already checked.
void gather_rows_planned(const TableView& table, const RowIds& ids, RowFormat format,
                         std::byte* out, const std::int32_t* num_tokens, const GatherPlan& plan,
                         StreamRef stream);

/// Loads every kernel of the reader, so that none is loaded inside a capture.
void load_gather_kernels();

}  // namespace penstock::detail
