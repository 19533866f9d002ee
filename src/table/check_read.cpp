#include "table/check_read.hpp"

#include <fmt/format.h>

#include "penstock/core/error.hpp"
#include "penstock/table/table_view.hpp"

namespace penstock::detail {

std::int64_t check_read(const RowSource& rows, std::int64_t first, std::size_t bytes) {
  const auto record = static_cast<std::size_t>(row_record_bytes(rows.head_dim()));
  const auto count = static_cast<std::int64_t>(bytes / record);
  const bool fits = bytes % record == 0 && first >= 0 && count <= rows.num_rows() - first;
  expects(fits, fmt::format("RowSource::read: found {} bytes from row {}, needed: whole records of "
                            "{} bytes within {} rows",
                            bytes, first, record, rows.num_rows()));
  return count;
}

}  // namespace penstock::detail
