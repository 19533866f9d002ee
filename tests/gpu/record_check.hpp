#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "penstock/core/buffer.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/row_source.hpp"
#include "penstock/table/table.hpp"

namespace penstock::gpu {

/// Whether the table's GPU reads the records of rows [first, first + count) as `source` has them.
/// The table has one column.
inline bool reads_right(const Table& table, const RowSource& source, std::int64_t first,
                        std::int64_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), static_cast<std::int32_t>(first));
  Buffer device_ids = Buffer::allocate(table.device(), ids.size() * sizeof(std::int32_t));
  copy_bytes(device_ids, std::as_bytes(std::span(ids)));
  std::vector<std::byte> expected(
      static_cast<std::size_t>(count * row_record_bytes(source.head_dim())));
  source.read(first, expected);
  const Buffer out = Buffer::zeros(table.device(), expected.size());
  gather_rows(table.view(),
              {.data = device_ids.as<std::int32_t>().data(),
               .tokens = count,
               .columns = 1,
               .token_stride = 1},
              RowFormat::Packed, out.as<std::byte>(), table.device());
  std::vector<std::byte> found(expected.size());
  copy_bytes(found, out);
  return found == expected;
}

/// The shape of a table of one column with the rows of `source`.
inline TableSpec one_column(const RowSource& source) {
  return {.layer_id = 1,
          .head_sizes = {source.num_rows()},
          .num_rows = source.num_rows(),
          .head_dim = source.head_dim()};
}

}  // namespace penstock::gpu
