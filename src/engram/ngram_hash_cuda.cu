#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "engram/ngram_hash_cuda.hpp"
#include "engram/ngram_hash_kernels.cuh"

namespace penstock::detail {
namespace {

constexpr int kBlockThreads = 256;

}  // namespace

void hash_tokens_cuda(const NgramHashArguments& arguments, Device device, StreamRef stream) {
  const cuda::DeviceGuard guard(device);
  const std::int64_t blocks = (arguments.batch.tokens + kHashTile - 1) / kHashTile;
  const std::size_t shared_bytes =
      sizeof(std::int32_t) * kHashTile * static_cast<std::size_t>(arguments.parameters.orders + 1);
  cuda::launch("hash_tokens_kernel", hash_tokens_kernel,
               {static_cast<int>(blocks), kBlockThreads, shared_bytes}, stream, arguments);
}

void write_slots_cuda(const SlotWriteArguments& arguments, Device device, StreamRef stream) {
  constexpr std::int64_t kMostBlocks = 1024;
  const cuda::DeviceGuard guard(device);
  const std::int64_t blocks = (arguments.tokens + kBlockThreads - 1) / kBlockThreads;
  cuda::launch("write_slots_kernel", write_slots_kernel,
               {static_cast<int>(std::min(blocks, kMostBlocks)), kBlockThreads}, stream, arguments);
}

}  // namespace penstock::detail
