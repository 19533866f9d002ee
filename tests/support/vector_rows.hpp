#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "penstock/table/row_source.hpp"
#include "penstock/table/table.hpp"
#include "penstock/table/table_view.hpp"
#include "support/table_oracle.hpp"
#include "support/test_table.hpp"

namespace penstock::test {

/// Rows of a WholeTable, with split arrays as if they lay in a file.
class VectorRows : public RowSource {
 public:
  explicit VectorRows(oracle::WholeTable table) : table_(std::move(table)) {}

  std::int64_t num_rows() const override { return test::num_rows(table_); }
  int head_dim() const override { return table_.head_dim; }
  std::string description() const override { return "rows of a test"; }

  void read(std::int64_t first, std::span<std::byte> records) const override {
    if (before_read) before_read(first);
    const auto dim = static_cast<std::size_t>(table_.head_dim);
    const auto record_bytes = static_cast<std::size_t>(row_record_bytes(table_.head_dim));
    std::memset(records.data(), 0, records.size());
    for (std::size_t i = 0; i < records.size() / record_bytes; ++i) {
      const std::size_t row = static_cast<std::size_t>(first) + i;
      std::byte* record = records.data() + i * record_bytes;
      std::memcpy(record, table_.values.data() + row * dim, dim);
      std::memcpy(record + dim, table_.scales.data() + row * (dim / 32), dim / 32);
    }
  }

  SplitArrays split_arrays() const override {
    return {reinterpret_cast<const std::byte*>(table_.values.data()),
            reinterpret_cast<const std::byte*>(table_.scales.data())};
  }

  const oracle::WholeTable& table() const { return table_; }

  std::function<void(std::int64_t first)> before_read;  ///< Called at the start of each read.

 private:
  oracle::WholeTable table_;
};

inline TableSpec spec_of(const oracle::WholeTable& table, int layer_id = 1) {
  return {.layer_id = layer_id,
          .head_sizes = table.head_sizes,
          .num_rows = num_rows(table),
          .head_dim = table.head_dim};
}

/// Whether row `row` of the view has the values and scales of the whole table.
inline bool has_row(const TableView& view, const oracle::WholeTable& table, std::int64_t row) {
  const auto dim = static_cast<std::size_t>(table.head_dim);
  const std::int64_t local = row - view.row_begin;
  const std::int64_t part = local / view.rows_per_part;
  const std::int64_t offset = local % view.rows_per_part;
  const std::size_t index = static_cast<std::size_t>(row);
  return std::memcmp(view.values[part] + offset * view.value_stride,
                     table.values.data() + index * dim, dim) == 0 &&
         std::memcmp(view.scales[part] + offset * view.scale_stride,
                     table.scales.data() + index * (dim / 32), dim / 32) == 0;
}

}  // namespace penstock::test
