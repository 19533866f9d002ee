#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

#include "cuda/ptx.cuh"
#include "gate/one_shot_cuda.hpp"
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

/// Two bf16 numbers as the CPU writes them: rounded to nearest even, NaN as 0x7FC0.
__device__ inline std::uint32_t narrow_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits = 0;
  memcpy(&bits, &pair, sizeof(bits));
  // The conversion writes every NaN as 0x7FFF, which is no other number's code.
  return bits ^ (__vcmpeq2(bits, 0x7FFF7FFFU) & 0x003F003FU);
}

__device__ inline std::uint16_t narrow(float value) {
  return static_cast<std::uint16_t>(narrow_pair(value, 0.0F));
}

__device__ inline float low_of(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}

__device__ inline float high_of(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}

__device__ inline std::uint32_t gated_pair(std::uint32_t z, std::uint32_t attn) {
  return narrow_pair(low_of(attn) * sigmoid(low_of(z)), high_of(attn) * sigmoid(high_of(z)));
}

__device__ inline uint4 gated_vector(const uint4& z, const uint4& attn) {
  return {gated_pair(z.x, attn.x), gated_pair(z.y, attn.y), gated_pair(z.z, attn.z),
          gated_pair(z.w, attn.w)};
}

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

/// Waits until rank `rank` has written its part of this round. Gives up after the deadline, so that
/// a rank that never comes cannot occupy the device for ever; the host finds the note.
__device__ inline void wait_for(const OneShotArguments& a, int rank, std::uint32_t round) {
  const std::uint64_t start = cuda::nanoseconds();
  // Rounds are compared as differences, so that the counter may wrap.
  while (static_cast<std::int32_t>(cuda::load_acquire(a.flags[a.rank] + rank) - round) < 0) {
    if (cuda::nanoseconds() - start < kOneShotDeadlineNs) continue;
    *a.missing_rank = rank + 1;
    __threadfence_system();
    return;
  }
}

/// Gates this rank's columns, gives them to every rank, and takes theirs.
///
/// A round writes one of two halves of the others' staging memory. A rank can be one round ahead of
/// another, never two, since it waits for the other's flag; so a half is never written while it is
/// read. The round lives in device memory: a captured launch can be replayed.
/// Sync:  data, system fence, count of blocks, then the flag by the last block; readers acquire it.
/// Grid:  at most as many blocks as run together, for blocks wait for other ranks' blocks.
/// Block: kOneShotThreads.
__global__ void one_shot_kernel(const OneShotArguments a) {
  __shared__ std::uint32_t round;
  if (threadIdx.x == 0) round = *a.round + 1;
  __syncthreads();
  const std::int64_t half = static_cast<std::int64_t>(round & 1U) * a.half_stride;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;

  const std::int64_t own_vectors = a.rows[a.rank] / kVectorElements;
  for (std::int64_t i = first; i < a.tokens * own_vectors; i += step) {
    const std::int64_t token = i / own_vectors;
    const std::int64_t column = (i - token * own_vectors) * kVectorElements;
    const std::int64_t at = token * a.width + a.first_row[a.rank] + column;
    const uint4 z = __ldcs(reinterpret_cast<const uint4*>(a.z + token * a.rows[a.rank] + column));
    const uint4 attn = __ldcs(reinterpret_cast<const uint4*>(a.attn + at));
    const uint4 value = gated_vector(z, attn);
    *reinterpret_cast<uint4*>(a.out + at) = value;
    for (int peer = 1; peer < a.ranks; ++peer) {
      const int rank = (a.rank + peer) % a.ranks;
      BF16* to = a.staging[rank] + half + a.rank * a.rank_stride + token * a.rows[a.rank] + column;
      *reinterpret_cast<uint4*>(to) = value;
    }
  }

  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    if (atomicAdd(a.arrived, 1U) == gridDim.x - 1) {
      __threadfence_system();
      for (int peer = 1; peer < a.ranks; ++peer) {
        const int rank = (a.rank + peer) % a.ranks;
        cuda::store_release(a.flags[rank] + a.rank, round);
      }
    }
  }
  if (static_cast<int>(threadIdx.x) < a.ranks && static_cast<int>(threadIdx.x) != a.rank) {
    wait_for(a, static_cast<int>(threadIdx.x), round);
  }
  __syncthreads();

  for (int peer = 1; peer < a.ranks; ++peer) {
    const int rank = (a.rank + peer) % a.ranks;
    const std::int64_t vectors = a.rows[rank] / kVectorElements;
    const BF16* from = a.staging[a.rank] + half + rank * a.rank_stride;
    for (std::int64_t i = first; i < a.tokens * vectors; i += step) {
      const std::int64_t token = i / vectors;
      const std::int64_t column = (i - token * vectors) * kVectorElements;
      BF16* to = a.out + token * a.width + a.first_row[rank] + column;
      *reinterpret_cast<uint4*>(to) =
          __ldcg(reinterpret_cast<const uint4*>(from + token * a.rows[rank] + column));
    }
  }

  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(a.departed, 1U) == gridDim.x - 1) {
    *a.arrived = 0;
    *a.departed = 0;
    *a.round = round;
  }
}

}  // namespace penstock::detail
