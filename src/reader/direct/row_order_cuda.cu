#include <cub/device/device_radix_sort.cuh>

#include <algorithm>
#include <cstdint>

#include "core/round_up.hpp"
#include "cuda/check.hpp"
#include "cuda/launch.cuh"
#include "reader/direct/gather_plan.hpp"
#include "reader/direct/row_order.hpp"

namespace penstock::detail {
namespace {

constexpr int kMostWindowBits = 16;
using Window = std::uint16_t;

constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) {
  return round_up(bytes, kAlignment);
}

std::size_t sort_bytes(std::int64_t rows) {
  std::size_t bytes = 0;
  PENSTOCK_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
      nullptr, bytes, static_cast<const Window*>(nullptr), static_cast<Window*>(nullptr),
      static_cast<const OrderedRow*>(nullptr), static_cast<OrderedRow*>(nullptr),
      static_cast<std::int32_t>(rows), 0, kMostWindowBits));
  return bytes;
}

/// What lies in the workspace.
struct OrderBuffers {
  OrderBuffers(std::int64_t rows, std::span<std::byte> workspace) {
    const auto count = static_cast<std::size_t>(rows);
    std::byte* next = workspace.data();
    const auto take = [&](std::size_t bytes) {
      std::byte* begin = next;
      next += aligned(bytes);
      return begin;
    };
    in = reinterpret_cast<OrderedRow*>(take(count * sizeof(OrderedRow)));
    out = reinterpret_cast<OrderedRow*>(take(count * sizeof(OrderedRow)));
    window_in = reinterpret_cast<Window*>(take(count * sizeof(Window)));
    window_out = reinterpret_cast<Window*>(take(count * sizeof(Window)));
    sort = std::span(next, workspace.data() + workspace.size());
  }

  OrderedRow* in;
  OrderedRow* out;
  Window* window_in;
  Window* window_out;
  std::span<std::byte> sort;
};

/// What find_windows_kernel reads; a kernel parameter.
struct WindowArguments {
  const std::int32_t* ids = nullptr;  ///< Column `column_begin` of token 0.
  std::int64_t token_stride = 0;
  std::uint32_t rows = 0;
  std::uint32_t local_columns = 0;
  std::uint32_t columns = 0;  ///< Those that the shard owns; the others are padded.
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  int window_shift = 0;  ///< Row of the shard >> this: its window.
};

/// Grid: any. Block: any. Rows that are not read count to window 0, where they cost nothing.
__global__ void find_windows_kernel(const WindowArguments a, OrderedRow* rows, Window* windows) {
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < a.rows;
       i += gridDim.x * blockDim.x) {
    const std::uint32_t token = i / a.local_columns;
    const std::uint32_t column = i - token * a.local_columns;
    const std::int32_t id =
        column < a.columns ? a.ids[static_cast<std::int64_t>(token) * a.token_stride + column] : -1;
    const bool is_there = id >= a.row_begin && id < a.row_end;
    rows[i] = {id, i};
    windows[i] = is_there ? static_cast<Window>((id - a.row_begin) >> a.window_shift) : Window{0};
  }
}

int window_shift_of(std::int64_t rows, int window_bits) {
  int shift = 0;
  while (((rows - 1) >> shift) >= (std::int64_t{1} << window_bits)) ++shift;
  return shift;
}

void sort_by_window(const OrderBuffers& buffers, std::int64_t rows, int window_bits,
                    StreamRef stream) {
  std::size_t bytes = buffers.sort.size();
  PENSTOCK_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
      buffers.sort.data(), bytes, static_cast<const Window*>(buffers.window_in), buffers.window_out,
      static_cast<const OrderedRow*>(buffers.in), buffers.out, static_cast<std::int32_t>(rows), 0,
      window_bits, stream.get()));
}

}  // namespace

bool order_pays(const TableView& table, std::int64_t rows) {
  constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;
  return table.in_host_memory && table.num_parts == 1 && rows > kFewRows &&
         rows >= shard_bytes(table) / kMebibyte;
}

std::size_t order_bytes(std::int64_t rows) {
  const auto count = static_cast<std::size_t>(rows);
  return 2 * aligned(count * sizeof(OrderedRow)) + 2 * aligned(count * sizeof(Window)) +
         aligned(sort_bytes(rows));
}

const OrderedRow* order_rows(const TableView& table, const RowIds& ids,
                             std::span<std::byte> workspace, StreamRef stream, int window_bits) {
  const std::int64_t rows = ids.tokens * table.local_columns;
  const OrderBuffers buffers(rows, workspace);
  const WindowArguments arguments{
      .ids = ids.data + table.column_begin,
      .token_stride = ids.token_stride,
      .rows = static_cast<std::uint32_t>(rows),
      .local_columns = static_cast<std::uint32_t>(table.local_columns),
      .columns = static_cast<std::uint32_t>(table.column_end - table.column_begin),
      .row_begin = table.row_begin,
      .row_end = table.row_end,
      .window_shift = window_shift_of(table.row_end - table.row_begin, window_bits)};
  constexpr int kThreads = 256;
  constexpr std::int64_t kMostBlocks = 64;
  const auto blocks = static_cast<int>(std::min(kMostBlocks, (rows + kThreads - 1) / kThreads));
  cuda::launch("find_windows_kernel", find_windows_kernel, {blocks, kThreads}, stream, arguments,
               buffers.in, buffers.window_in);
  sort_by_window(buffers, rows, window_bits, stream);
  return buffers.out;
}

void load_order_kernels(std::int64_t rows, std::span<std::byte> workspace, StreamRef stream) {
  cuda::load_kernel(find_windows_kernel);
  // The sort takes other kernels for few elements than for many.
  for (const std::int64_t count : {std::min(rows, kFewRows + 1), rows}) {
    const OrderBuffers buffers(count, workspace);
    PENSTOCK_CUDA_CHECK(cudaMemsetAsync(workspace.data(), 0, workspace.size(), stream.get()));
    sort_by_window(buffers, count, kWindowBits, stream);
  }
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
}

}  // namespace penstock::detail
