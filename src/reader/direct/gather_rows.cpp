#include "penstock/reader/gather_rows.hpp"

#include <fmt/format.h>

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"
#include "reader/direct/gather_rows_impl.hpp"

namespace penstock {
namespace {

void check_sizes(const TableView& table, const RowIds& ids, RowFormat format, std::size_t out) {
  expects(table.num_parts >= 1 && table.num_parts <= TableView::kMaxParts,
          fmt::format("gather_rows: the table has {} parts, needed: 1 to {}", table.num_parts,
                      TableView::kMaxParts));
  expects(ids.tokens >= 0,
          fmt::format("gather_rows: found {} tokens, needed: 0 or more", ids.tokens));
  expects(ids.columns >= table.column_end,
          fmt::format("gather_rows: ids have {} columns, needed: all {} columns up to the shard's "
                      "last",
                      ids.columns, table.column_end));
  expects(ids.tokens <= 1 || ids.token_stride >= ids.columns,
          fmt::format("gather_rows: tokens lie {} ids apart, needed: at least their {} columns",
                      ids.token_stride, ids.columns));
  expects(ids.tokens == 0 || ids.data != nullptr, "gather_rows: ids is null, needed: row ids");
  const std::int64_t needed = ids.tokens * table.local_columns * staging_row_bytes(table, format);
  expects(static_cast<std::int64_t>(out) == needed,
          fmt::format("gather_rows: out has {} bytes, needed: {} for {} tokens of {} columns", out,
                      needed, ids.tokens, table.local_columns));
}

}  // namespace

std::int64_t staging_row_bytes(const TableView& table, RowFormat format) {
  switch (format) {
    case RowFormat::Bf16: return std::int64_t{2} * table.head_dim;
    case RowFormat::Packed: return row_record_bytes(table.head_dim);
  }
  throw Error(ErrorCode::Internal, "staging_row_bytes: not a RowFormat");
}

std::size_t gather_workspace_bytes(const TableView& table, std::int64_t tokens, Device device) {
  expects(tokens >= 0,
          fmt::format("gather_workspace_bytes: found {} tokens, needed: 0 or more", tokens));
  if (device.kind == DeviceKind::Cpu) return 0;
  if constexpr (build::has_cuda) return detail::gather_workspace_bytes_cuda(table, tokens);
  throw Error(ErrorCode::Unsupported, "gather_workspace_bytes: built without PENSTOCK_WITH_CUDA");
}

void gather_rows(const TableView& table, const RowIds& ids, RowFormat format,
                 std::span<std::byte> out, Device device, StreamRef stream,
                 const GatherOptions& options) {
  check_sizes(table, ids, format, out.size());
  if (out.empty()) return;
  switch (device.kind) {
    case DeviceKind::Cpu: detail::gather_rows_cpu(table, ids, format, out.data()); return;
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) {
        detail::gather_rows_cuda(table, ids, format, out.data(), device, stream, options);
        return;
      }
      throw Error(ErrorCode::Unsupported, "gather_rows: built without PENSTOCK_WITH_CUDA");
  }
  throw Error(ErrorCode::Internal, "gather_rows: not a DeviceKind");
}

}  // namespace penstock
