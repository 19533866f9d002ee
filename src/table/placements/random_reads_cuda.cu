#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/keyed_numbers.hpp"
#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "cuda/stream_memory.hpp"
#include "cuda/unique_handle.hpp"
#include "penstock/core/buffer.hpp"
#include "table/placements/placements_cuda.hpp"

namespace penstock::detail {
namespace {

constexpr int kRowBytes = 256;
constexpr int kRowsOfRead = 16'384;
constexpr int kBlocks = 4;  // what a prefetch uses
constexpr int kThreads = 1024;
constexpr int kReads = 5;

/// Adds up rows at places that follow from their number and `seed`, so that reads cannot be left out.
///
/// Shapes: rows [num_rows, 256] bytes, sums [gridDim.x * blockDim.x].
/// Grid:   any; one warp a row at a time, each lane 8 bytes of it.
__global__ void random_reads_kernel(const std::uint64_t* rows, std::uint64_t num_rows,
                                    std::uint64_t seed, std::uint64_t* sums) {
  constexpr int kWordsOfRow = 32;
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned lane = thread % kWordsOfRow;
  const unsigned warps = gridDim.x * blockDim.x / kWordsOfRow;
  std::uint64_t sum = 0;
#pragma unroll 4
  for (unsigned row = thread / kWordsOfRow; row < kRowsOfRead; row += warps) {
    const std::uint64_t place = mix_bits((seed + row) * kGoldenGamma);  // neighbours land far apart
    sum += rows[place % num_rows * kWordsOfRow + lane];
  }
  sums[thread] = sum;
}

cuda::UniqueEvent make_timed_event() {
  cudaEvent_t event = nullptr;
  PENSTOCK_CUDA_CHECK(cudaEventCreate(&event));
  return cuda::UniqueEvent(event);
}

}  // namespace

double random_rows_per_second_cuda(std::span<const std::byte> memory, Device device) {
  const cuda::DeviceGuard guard(device);
  const cuda::UniqueStream stream = cuda::make_background_stream();
  const StreamRef stream_ref(stream.get());
  const Buffer sums =
      Buffer::allocate(device, std::size_t{kBlocks} * kThreads * sizeof(std::uint64_t));
  const auto* rows = reinterpret_cast<const std::uint64_t*>(memory.data());
  const std::uint64_t num_rows = memory.size() / kRowBytes;
  const cuda::UniqueEvent begin = make_timed_event();
  const cuda::UniqueEvent end = make_timed_event();
  std::array<float, kReads> milliseconds{};
  for (int read = -1; read < kReads; ++read) {  // the first loads the kernel
    PENSTOCK_CUDA_CHECK(cudaEventRecord(begin.get(), stream.get()));
    cuda::launch("random_reads", random_reads_kernel, {kBlocks, kThreads}, stream_ref, rows,
                 num_rows, static_cast<std::uint64_t>(read + 1) * kRowsOfRead,
                 reinterpret_cast<std::uint64_t*>(sums.data()));
    PENSTOCK_CUDA_CHECK(cudaEventRecord(end.get(), stream.get()));
    PENSTOCK_CUDA_CHECK(cudaEventSynchronize(end.get()));
    if (read < 0) continue;
    PENSTOCK_CUDA_CHECK(cudaEventElapsedTime(&milliseconds[static_cast<std::size_t>(read)],
                                             begin.get(), end.get()));
  }
  std::ranges::sort(milliseconds);
  return kRowsOfRead / (milliseconds[kReads / 2] * 1e-3);
}

}  // namespace penstock::detail
