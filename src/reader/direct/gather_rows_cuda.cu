#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "cuda/alignment.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "penstock/core/error.hpp"
#include "reader/direct/gather_rows_cuda.hpp"
#include "reader/direct/gather_rows_impl.hpp"
#include "reader/direct/gather_rows_kernels.cuh"

namespace penstock::detail {
namespace {

using cuda::is_aligned;

constexpr int kManyParts = TableView::kMaxParts;
constexpr std::uintptr_t kFastAlignment = 16;  // of staging memory, for the kernels of 256 codes

template <int kParts>
using Kernel = void (*)(const GatherArguments<kParts>);

/// Staging rows, and one grid's stride past them, are counted in 32 bits on the device.
void check_rows(const char* function, std::int64_t rows) {
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  expects(rows <= kMostRows, std::string(function) + ": " + std::to_string(rows) +
                                 " rows in one read, at most " + std::to_string(kMostRows) +
                                 " are possible");
}

void check_workspace(std::span<const std::byte> workspace, std::size_t needed) {
  expects(workspace.size() >= needed, "gather_rows: workspace has " +
                                          std::to_string(workspace.size()) +
                                          " bytes, needed: " + std::to_string(needed));
  expects(is_aligned(workspace.data(), 256), "gather_rows: workspace is not aligned to 256 bytes");
}

template <RowFormat kFormat, int kParts, bool kInOrder>
Kernel<kParts> fast_kernel(int rows_per_warp) {
  switch (rows_per_warp) {
    case 1: return gather_rows_kernel<kFormat, 1, kParts, kInOrder>;
    case 2: return gather_rows_kernel<kFormat, 2, kParts, kInOrder>;
    case 4: return gather_rows_kernel<kFormat, 4, kParts, kInOrder>;
    case 8: return gather_rows_kernel<kFormat, 8, kParts, kInOrder>;
    default:
      throw Error(ErrorCode::Internal, "gather_rows: " + std::to_string(rows_per_warp) +
                                           " rows per warp, needed: 1, 2, 4 or 8");
  }
}

template <int kParts>
Kernel<kParts> few_kernel(RowFormat format) {
  return format == RowFormat::Bf16 ? gather_few_rows_kernel<RowFormat::Bf16, kParts>
                                   : gather_few_rows_kernel<RowFormat::Packed, kParts>;
}

template <int kParts, bool kInOrder>
Kernel<kParts> fast_kernel(RowFormat format, int rows_per_warp) {
  switch (format) {
    case RowFormat::Bf16: return fast_kernel<RowFormat::Bf16, kParts, kInOrder>(rows_per_warp);
    case RowFormat::Packed: return fast_kernel<RowFormat::Packed, kParts, kInOrder>(rows_per_warp);
  }
  throw Error(ErrorCode::Internal, "gather_rows: not a RowFormat");
}

Kernel<kManyParts> any_kernel(RowFormat format) {
  return format == RowFormat::Bf16 ? gather_any_rows_kernel<RowFormat::Bf16>
                                   : gather_any_rows_kernel<RowFormat::Packed>;
}

/// One read, but for the grid.
struct GatherCall {
  const TableView& table;
  const RowIds& ids;
  const std::int32_t* num_tokens;
  std::byte* out;
  const OrderedRow* order;  ///< Null: that of the staging rows.
};

template <int kParts>
GatherArguments<kParts> arguments_of(const GatherCall& call) {
  const TableView& table = call.table;
  GatherArguments<kParts> a;
  a.ids = call.ids.data;
  a.token_stride = call.ids.token_stride;
  a.rows = static_cast<std::uint32_t>(call.ids.tokens * table.local_columns);
  a.local_columns = table.local_columns;
  a.column_begin = table.column_begin;
  a.column_end = table.column_end;
  a.num_tokens = call.num_tokens;
  a.takes_every_id = table.column_begin == 0 && table.column_end == table.local_columns &&
                     call.ids.token_stride == table.local_columns;
  a.row_begin = table.row_begin;
  a.row_end = table.row_end;
  a.value_stride = table.value_stride;
  a.scale_stride = table.scale_stride;
  std::copy_n(table.values, kParts, a.values);
  std::copy_n(table.scales, kParts, a.scales);
  a.out = call.out;
  a.order = call.order;
  a.rows_per_part = static_cast<std::uint32_t>(table.rows_per_part);
  a.head_dim = table.head_dim;
  a.num_rows = table.num_rows;
  a.rejected = table.rejected;
  return a;
}

template <int kParts>
void launch(Kernel<kParts> kernel, const GatherCall& call, const GatherPlan& plan,
            StreamRef stream) {
  cuda::launch("gather_rows_kernel", kernel, {plan.blocks, plan.threads}, stream,
               arguments_of<kParts>(call));
}

template <int kParts>
void launch_fast(const GatherCall& call, RowFormat format, const GatherPlan& plan,
                 StreamRef stream) {
  const std::int64_t rows = call.ids.tokens * call.table.local_columns;
  const bool has_warp_for_each = std::int64_t{plan.blocks} * (plan.threads / kWarp) >= rows;
  launch(has_warp_for_each ? few_kernel<kParts>(format)
                           : fast_kernel<kParts, false>(format, plan.rows_per_warp),
         call, plan, stream);
}

}  // namespace

bool has_fast_rows(const TableView& table) {
  if (table.head_dim != kFastDim) return false;
  if (table.value_stride % 8 != 0 || table.scale_stride % 8 != 0) return false;
  for (int part = 0; part < table.num_parts; ++part) {
    if (!is_aligned(table.values[part], 8) || !is_aligned(table.scales[part], 8)) return false;
  }
  return true;
}

void gather_rows_planned(const TableView& table, const RowIds& ids, RowFormat format,
                         std::byte* out, const std::int32_t* num_tokens, const GatherPlan& plan,
                         StreamRef stream, const OrderedRow* order) {
  const GatherCall call{table, ids, num_tokens, out, order};
  if (!has_fast_rows(table) || !is_aligned(out, kFastAlignment)) {
    launch(any_kernel(format), call, plan, stream);
  } else if (table.num_parts > 1) {
    launch_fast<kManyParts>(call, format, plan, stream);
  } else if (order != nullptr) {
    launch(fast_kernel<1, true>(format, plan.rows_per_warp), call, plan, stream);
  } else {
    launch_fast<1>(call, format, plan, stream);
  }
}

void load_gather_kernels() {
  for (const RowFormat format : {RowFormat::Bf16, RowFormat::Packed}) {
    for (const int rows_per_warp : {1, 2, 4, 8}) {
      cuda::load_kernel(fast_kernel<1, false>(format, rows_per_warp));
      cuda::load_kernel(fast_kernel<1, true>(format, rows_per_warp));
      cuda::load_kernel(fast_kernel<kManyParts, false>(format, rows_per_warp));
    }
    cuda::load_kernel(few_kernel<1>(format));
    cuda::load_kernel(few_kernel<kManyParts>(format));
    cuda::load_kernel(any_kernel(format));
  }
}

void gather_rows_in_order(const TableView& table, const RowIds& ids, RowFormat format,
                          std::byte* out, Device device, StreamRef stream,
                          const GatherOptions& options, const OrderedRow* order) {
  const std::int64_t rows = ids.tokens * table.local_columns;
  const GatherPlan plan = plan_gather({.rows = rows,
                                       .in_host_memory = table.in_host_memory,
                                       .is_in_order = order != nullptr,
                                       .table_bytes = shard_bytes(table),
                                       .is_spread = table.num_parts > 1,
                                       .writes_bf16 = format == RowFormat::Bf16,
                                       .multiprocessors = cuda::multiprocessors(device),
                                       .requested_blocks = options.blocks});
  gather_rows_planned(table, ids, format, out, options.num_tokens, plan, stream, order);
}

void gather_rows_cuda(const TableView& table, const RowIds& ids, RowFormat format, std::byte* out,
                      Device device, StreamRef stream, const GatherOptions& options) {
  const std::int64_t rows = ids.tokens * table.local_columns;
  check_rows("gather_rows", rows);
  const cuda::DeviceGuard guard(device);
  const OrderedRow* order = nullptr;
  if (!options.workspace.empty() && is_aligned(out, kFastAlignment)) {
    check_workspace(options.workspace, gather_workspace_bytes_cuda(table, ids.tokens));
    if (has_fast_rows(table) && order_pays(table, rows)) {
      order = order_rows(table, ids, options.workspace, stream);
    }
  }
  gather_rows_in_order(table, ids, format, out, device, stream, options, order);
}

std::size_t gather_workspace_bytes_cuda(const TableView& table, std::int64_t tokens) {
  const std::int64_t rows = tokens * table.local_columns;
  check_rows("gather_workspace_bytes", rows);
  return has_fast_rows(table) && order_pays(table, rows) ? order_bytes(rows) : 0;
}

}  // namespace penstock::detail
