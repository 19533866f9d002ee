#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/table/row_source.hpp"

namespace penstock::detail {

/// The number of records in `bytes` bytes.
///
/// Errors: InvalidArgument unless they are whole records of rows that `rows` has from `first` on.
std::int64_t check_read(const RowSource& rows, std::int64_t first, std::size_t bytes);

}  // namespace penstock::detail
