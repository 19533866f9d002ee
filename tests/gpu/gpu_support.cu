#include "cuda/launch.cuh"
#include "gpu/gpu_support.hpp"

namespace penstock::gpu {
namespace {

/// Grid: 1. Block: 1. Spins for `nanoseconds`.
__global__ void delay_kernel(std::uint64_t nanoseconds) {
  std::uint64_t start = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

/// Grid, block: any; the loop strides over them.
__global__ void count_differences_kernel(const std::byte* a, const std::byte* b,
                                         std::int64_t token_bytes, const std::int32_t* num_tokens,
                                         unsigned long long* differences) {
  const std::int64_t bytes = token_bytes * *num_tokens;
  unsigned long long count = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    if (a[i] != b[i]) ++count;
  }
  if (count != 0) atomicAdd(differences, count);
}

}  // namespace

void delay(const Stream& stream, int microseconds) {
  cuda::launch("delay_kernel", delay_kernel, {1, 1}, stream.ref(),
               static_cast<std::uint64_t>(microseconds) * 1000);
}

void count_differences(const Stream& stream, const std::byte* a, const std::byte* b,
                       std::int64_t token_bytes, const std::int32_t* num_tokens,
                       unsigned long long* differences) {
  cuda::launch("count_differences_kernel", count_differences_kernel, {32, 256}, stream.ref(), a, b,
               token_bytes, num_tokens, differences);
}

}  // namespace penstock::gpu
