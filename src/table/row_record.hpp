#pragma once

#include <cstddef>
#include <cstring>

#include "penstock/table/table_view.hpp"

namespace penstock::detail {

/// Writes the record of a row whose values and scales lie apart: `docs/formats/row_record.md`.
///
/// Shapes: values [head_dim], scales [head_dim / 32], record [row_record_bytes(head_dim)].
inline void write_row_record(const std::byte* values, const std::byte* scales, int head_dim,
                             std::byte* record) {
  const auto value_bytes = static_cast<std::size_t>(head_dim);
  const std::size_t scale_bytes = value_bytes / 32;
  const auto record_bytes = static_cast<std::size_t>(row_record_bytes(head_dim));
  std::memcpy(record, values, value_bytes);
  std::memcpy(record + value_bytes, scales, scale_bytes);
  std::memset(record + value_bytes + scale_bytes, 0, record_bytes - value_bytes - scale_bytes);
}

}  // namespace penstock::detail
