#pragma once

#include <cstdint>

#include "gate/gate_math.cuh"
#include "penstock/core/dtype.hpp"

namespace penstock::detail {

/// Sizes and places of out = attn * sigmoid(z). Strides in elements.
struct MultiplyArguments {
  const void* z = nullptr;
  std::int64_t z_stride = 0;
  const BF16* attn = nullptr;
  std::int64_t attn_stride = 0;
  BF16* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;  ///< Projections of a token.
  int head_width = 1;
  int blocks_per_token = 1;
};

/// z in bf16, one column a projection.
///
/// Requires: all pointers aligned to 16 bytes, strides and rows multiples of 8.
/// Grid:     tokens * blocks_per_token. Block: kGateThreads.
__global__ void multiply_vectors_kernel(const MultiplyArguments a) {
  const std::int64_t token = blockIdx.x / a.blocks_per_token;
  const int part = static_cast<int>(blockIdx.x % a.blocks_per_token);
  const std::int64_t vectors = a.rows / kVectorElements;
  const std::int64_t first =
      static_cast<std::int64_t>(part) * kGateThreads * kVectorsPerThread + threadIdx.x;
  const auto* z =
      reinterpret_cast<const uint4*>(static_cast<const BF16*>(a.z) + token * a.z_stride);
  const auto* attn = reinterpret_cast<const uint4*>(a.attn + token * a.attn_stride);
  auto* out = reinterpret_cast<uint4*>(a.out + token * a.out_stride);
  uint4 z_values[kVectorsPerThread];
  uint4 attn_values[kVectorsPerThread];
  // All loads before the first use: z and attn are on their way together.
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    const std::int64_t at = first + i * kGateThreads;
    if (at >= vectors) continue;
    z_values[i] = z[at];
    attn_values[i] = __ldcs(attn + at);
  }
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    const std::int64_t at = first + i * kGateThreads;
    if (at < vectors) __stcs(out + at, gated_vector(z_values[i], attn_values[i]));
  }
}

__device__ inline float projection(const float* z, std::int64_t at) {
  return z[at];
}

__device__ inline float projection(const BF16* z, std::int64_t at) {
  return widen(z[at].bits);
}

/// Any sizes, any alignment. Grid: tokens * blocks_per_token. Block: kGateThreads.
template <typename Value>
__global__ void multiply_any_kernel(const MultiplyArguments a) {
  const std::int64_t token = blockIdx.x / a.blocks_per_token;
  const std::int64_t part = blockIdx.x % a.blocks_per_token;
  const auto* z = static_cast<const Value*>(a.z) + token * a.z_stride;
  const std::int64_t step = static_cast<std::int64_t>(a.blocks_per_token) * kGateThreads;
  for (std::int64_t i = part * kGateThreads + threadIdx.x; i < a.rows * a.head_width; i += step) {
    const float gate = sigmoid(projection(z, i / a.head_width));
    const float attn = widen(a.attn[token * a.attn_stride + i].bits);
    a.out[token * a.out_stride + i] = BF16{narrow(attn * gate)};
  }
}

/// The first of two separate operations: z = bf16(sigmoid(z)). Grid and block as above.
__global__ void sigmoid_kernel(BF16* z, std::int64_t z_stride, std::int64_t rows,
                               int blocks_per_token) {
  const std::int64_t token = blockIdx.x / blocks_per_token;
  const std::int64_t part = blockIdx.x % blocks_per_token;
  const std::int64_t step = static_cast<std::int64_t>(blocks_per_token) * kGateThreads;
  BF16* row = z + token * z_stride;
  for (std::int64_t i = part * kGateThreads + threadIdx.x; i < rows; i += step) {
    row[i] = BF16{narrow(sigmoid(widen(row[i].bits)))};
  }
}

/// The second: out = bf16(attn * gate), with the gates in `a.z`. Grid and block as above.
__global__ void multiply_gates_kernel(const MultiplyArguments a) {
  const std::int64_t token = blockIdx.x / a.blocks_per_token;
  const std::int64_t part = blockIdx.x % a.blocks_per_token;
  const auto* gates = static_cast<const BF16*>(a.z) + token * a.z_stride;
  const std::int64_t step = static_cast<std::int64_t>(a.blocks_per_token) * kGateThreads;
  for (std::int64_t i = part * kGateThreads + threadIdx.x; i < a.rows * a.head_width; i += step) {
    const float attn = widen(a.attn[token * a.attn_stride + i].bits);
    a.out[token * a.out_stride + i] = BF16{narrow(attn * widen(gates[i / a.head_width].bits))};
  }
}

}  // namespace penstock::detail
