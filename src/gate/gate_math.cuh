#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/bf16.cuh"
#include "penstock/core/dtype.hpp"

namespace penstock::detail {

inline constexpr int kGateThreads = 256;
inline constexpr int kVectorElements = 8;  // bf16 numbers of one 16-byte access
inline constexpr int kVectorsPerThread = 4;

/// 1 / (1 + exp(-z)); the quotient is 0 where the exponential is infinite.
__device__ inline float sigmoid(float z) {
  return 1.0F / (1.0F + __expf(-z));
}

__device__ inline float widen(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

__device__ inline std::uint16_t narrow(float value) {
  return static_cast<std::uint16_t>(cuda::to_bf16_pair(value, 0.0F));
}

__device__ inline std::uint32_t gated_pair(std::uint32_t z, std::uint32_t attn) {
  return cuda::to_bf16_pair(cuda::low_to_float(attn) * sigmoid(cuda::low_to_float(z)),
                            cuda::high_to_float(attn) * sigmoid(cuda::high_to_float(z)));
}

__device__ inline uint4 gated_vector(const uint4& z, const uint4& attn) {
  return {gated_pair(z.x, attn.x), gated_pair(z.y, attn.y), gated_pair(z.z, attn.z),
          gated_pair(z.w, attn.w)};
}

}  // namespace penstock::detail
