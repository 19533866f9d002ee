#include <cstdint>
#include <limits>
#include <string>

#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "penstock/core/error.hpp"
#include "reader/direct/gather_rows_cuda.hpp"
#include "reader/direct/gather_rows_impl.hpp"
#include "reader/direct/gather_rows_kernels.cuh"

namespace penstock::detail {
namespace {

using Kernel = void (*)(const GatherArguments);

bool is_aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// Whether the kernel for rows of 256 codes can read this table.
bool has_fast_rows(const TableView& table, const std::byte* out) {
  if (table.head_dim != kFastDim || !is_aligned(out, 16)) return false;
  if (table.value_stride % 8 != 0 || table.scale_stride % 8 != 0) return false;
  for (int part = 0; part < table.num_parts; ++part) {
    if (!is_aligned(table.values[part], 8) || !is_aligned(table.scales[part], 8)) return false;
  }
  return true;
}

template <RowFormat kFormat, bool kOnePart>
Kernel fast_kernel(int rows_per_warp) {
  switch (rows_per_warp) {
    case 1: return gather_rows_kernel<kFormat, 1, kOnePart>;
    case 2: return gather_rows_kernel<kFormat, 2, kOnePart>;
    case 4: return gather_rows_kernel<kFormat, 4, kOnePart>;
    case 8: return gather_rows_kernel<kFormat, 8, kOnePart>;
    default:
      throw Error(ErrorCode::Internal, "gather_rows: " + std::to_string(rows_per_warp) +
                                           " rows per warp, needed: 1, 2, 4 or 8");
  }
}

template <RowFormat kFormat>
Kernel pick_kernel(bool is_fast, bool is_one_part, int rows_per_warp) {
  if (!is_fast) return gather_any_rows_kernel<kFormat>;
  return is_one_part ? fast_kernel<kFormat, true>(rows_per_warp)
                     : fast_kernel<kFormat, false>(rows_per_warp);
}

Kernel pick_kernel(const TableView& table, RowFormat format, const std::byte* out,
                   int rows_per_warp) {
  const bool is_fast = has_fast_rows(table, out);
  const bool is_one_part = table.num_parts == 1;
  switch (format) {
    case RowFormat::Bf16: return pick_kernel<RowFormat::Bf16>(is_fast, is_one_part, rows_per_warp);
    case RowFormat::Packed:
      return pick_kernel<RowFormat::Packed>(is_fast, is_one_part, rows_per_warp);
  }
  throw Error(ErrorCode::Internal, "gather_rows: not a RowFormat");
}

template <RowFormat kFormat>
void load_kernels() {
  for (const int rows_per_warp : {1, 2, 4, 8}) {
    cuda::load_kernel(fast_kernel<kFormat, true>(rows_per_warp));
    cuda::load_kernel(fast_kernel<kFormat, false>(rows_per_warp));
  }
  cuda::load_kernel(gather_any_rows_kernel<kFormat>);
}

}  // namespace

void gather_rows_planned(const TableView& table, const RowIds& ids, RowFormat format,
                         std::byte* out, const std::int32_t* num_tokens, const GatherPlan& plan,
                         StreamRef stream) {
  GatherArguments arguments;
  arguments.table = table;
  arguments.ids = ids.data;
  arguments.token_stride = ids.token_stride;
  arguments.num_tokens = num_tokens;
  arguments.rows = static_cast<std::uint32_t>(ids.tokens * table.local_columns);
  arguments.out = out;
  cuda::launch("gather_rows_kernel", pick_kernel(table, format, out, plan.rows_per_warp),
               {plan.blocks, plan.threads}, stream, arguments);
}

void load_gather_kernels() {
  load_kernels<RowFormat::Bf16>();
  load_kernels<RowFormat::Packed>();
}

void gather_rows_cuda(const TableView& table, const RowIds& ids, RowFormat format, std::byte* out,
                      Device device, StreamRef stream, const GatherOptions& options) {
  // Staging rows, and one grid's stride past them, are counted in 32 bits on the device.
  constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
  const std::int64_t rows = ids.tokens * table.local_columns;
  expects(rows <= kMostRows, "gather_rows: " + std::to_string(rows) +
                                 " rows in one read, at most " + std::to_string(kMostRows) +
                                 " are possible");
  const cuda::DeviceGuard guard(device);
  const GatherPlan plan = plan_gather({.rows = rows,
                                       .in_host_memory = table.in_host_memory,
                                       .is_spread = table.num_parts > 1,
                                       .writes_bf16 = format == RowFormat::Bf16,
                                       .multiprocessors = cuda::multiprocessors(device),
                                       .requested_blocks = options.blocks});
  gather_rows_planned(table, ids, format, out, options.num_tokens, plan, stream);
}

}  // namespace penstock::detail
