#include <algorithm>

#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "engram/stage/merge_sources.hpp"

namespace penstock::detail {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 1024;

/// Grid: any; the loop strides over it. Block: kThreads. Shared: none. Sync: none.
__global__ void merge_sources_kernel(const std::uint64_t* from, int sources,
                                     std::int64_t token_words, std::uint64_t* to,
                                     std::int64_t words) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    const std::int64_t token = i / token_words;
    const std::int64_t word = i - token * token_words;
    std::uint64_t merged = 0;
    for (int source = 0; source < sources; ++source) {
      merged |= from[(token * sources + source) * token_words + word];
    }
    to[i] = merged;
  }
}

}  // namespace

void merge_sources_cuda(const std::uint64_t* from, int sources, std::int64_t token_words,
                        std::uint64_t* to, std::int64_t words, Device device, StreamRef stream) {
  if (words == 0) return;
  const cuda::DeviceGuard guard(device);
  const std::int64_t blocks =
      std::clamp((words + kThreads - 1) / kThreads, std::int64_t{1}, kMostBlocks);
  cuda::launch("merge_sources_kernel", merge_sources_kernel,
               {.blocks = static_cast<int>(blocks), .threads = kThreads}, stream, from, sources,
               token_words, to, words);
}

}  // namespace penstock::detail
