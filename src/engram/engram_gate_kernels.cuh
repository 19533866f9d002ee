#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/bf16.cuh"
#include "engram/engram_gate_impl.hpp"
#include "penstock/core/dtype.hpp"

// Device code of the Engram gate. One block computes one copy of one token, in float.
namespace penstock::detail {

inline constexpr int kGateThreads = 256;
inline constexpr int kGateWarps = kGateThreads / 32;

/// What the gate kernels need to know; a kernel parameter.
struct GateArguments {
  const BF16* hidden = nullptr;
  const BF16* kv = nullptr;
  const BF16* q_weight = nullptr;
  const BF16* k_weight = nullptr;
  const std::uint8_t* mask = nullptr;  ///< Null: every token is active.
  BF16* out = nullptr;
  int hc_mult = 0;
  int dim = 0;
  float eps = 0;
};

/// The rows of one copy of one token.
struct GateRows {
  const BF16* hidden;
  const BF16* key;
  const BF16* value;
  const BF16* q_weight;
  const BF16* k_weight;
  BF16* out;
  bool is_active;
};

__device__ inline GateRows gate_rows(const GateArguments& a, std::int64_t index) {
  const std::int64_t token = index / a.hc_mult;
  const std::int64_t copy = index - token * a.hc_mult;
  const BF16* keys = a.kv + token * (a.hc_mult + 1) * a.dim;
  return {a.hidden + index * a.dim,
          keys + copy * a.dim,
          keys + std::int64_t{a.hc_mult} * a.dim,
          a.q_weight + copy * a.dim,
          a.k_weight + copy * a.dim,
          a.out + index * a.dim,
          a.mask == nullptr || a.mask[token] != 0};
}

/// The three sums that a gate is made of.
struct GateSums {
  float hidden_squares = 0;
  float key_squares = 0;
  float products = 0;

  __device__ void add(float hidden, float key, float q, float k) {
    hidden_squares += hidden * hidden;
    key_squares += key * key;
    products += hidden * (q * k) * key;
  }

  __device__ void add(const GateSums& other) {
    hidden_squares += other.hidden_squares;
    key_squares += other.key_squares;
    products += other.products;
  }
};

/// The sums over all threads of the block, on every thread. Called once per block.
__device__ inline GateSums block_sum(GateSums sums) {
  __shared__ GateSums of_warp[kGateWarps];
  for (int distance = 16; distance > 0; distance /= 2) {
    sums.add({__shfl_xor_sync(0xFFFFFFFFU, sums.hidden_squares, distance),
              __shfl_xor_sync(0xFFFFFFFFU, sums.key_squares, distance),
              __shfl_xor_sync(0xFFFFFFFFU, sums.products, distance)});
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sums;
  __syncthreads();
  GateSums total;
  for (int warp = 0; warp < kGateWarps; ++warp) total.add(of_warp[warp]);
  return total;
}

__device__ inline float gate_of(const GateSums& sums, int dim, float eps) {
  const auto width = static_cast<float>(dim);
  const float rms =
      rsqrtf(sums.hidden_squares / width + eps) * rsqrtf(sums.key_squares / width + eps);
  const float dot = sums.products * (rms * rsqrtf(width));
  const float root = sqrtf(fmaxf(fabsf(dot), kGateClamp));
  return 1.0F / (1.0F + expf(dot < 0.0F ? root : -root));
}

/// Eight bf16 numbers of a row.
__device__ inline uint4 load_vector(const BF16* row, int vector) {
  return reinterpret_cast<const uint4*>(row)[vector];
}

__device__ inline void add_pair(GateSums& sums, std::uint32_t hidden, std::uint32_t key,
                                std::uint32_t q, std::uint32_t k) {
  sums.add(cuda::low_to_float(hidden), cuda::low_to_float(key), cuda::low_to_float(q),
           cuda::low_to_float(k));
  sums.add(cuda::high_to_float(hidden), cuda::high_to_float(key), cuda::high_to_float(q),
           cuda::high_to_float(k));
}

__device__ inline std::uint32_t inject_pair(std::uint32_t hidden, std::uint32_t value, float gate) {
  return cuda::to_bf16_pair(cuda::low_to_float(hidden) + gate * cuda::low_to_float(value),
                            cuda::high_to_float(hidden) + gate * cuda::high_to_float(value));
}

/// Rows whose width is a multiple of 8, at addresses that are multiples of 16; a thread keeps its
/// part of hidden and of the value in registers between the sums and the output.
///
/// Grid:   tokens * hc_mult blocks. Block: kGateThreads.
/// Shared: static. Sync: one barrier.
/// Needs:  dim <= 8 * kGateThreads * kVectors.
template <int kVectors>
__global__ void __launch_bounds__(kGateThreads)
    gate_vectors_kernel(const __grid_constant__ GateArguments a) {
  const GateRows rows = gate_rows(a, blockIdx.x);
  const int vectors = a.dim / 8;
  uint4 hidden[kVectors];
  uint4 value[kVectors];
  GateSums sums;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = static_cast<int>(threadIdx.x) + i * kGateThreads;
    if (vector >= vectors) continue;
    hidden[i] = load_vector(rows.hidden, vector);
    if (!rows.is_active) continue;  // kv of a masked token is not read
    value[i] = load_vector(rows.value, vector);
    const uint4 key = load_vector(rows.key, vector);
    const uint4 q = load_vector(rows.q_weight, vector);
    const uint4 k = load_vector(rows.k_weight, vector);
    add_pair(sums, hidden[i].x, key.x, q.x, k.x);
    add_pair(sums, hidden[i].y, key.y, q.y, k.y);
    add_pair(sums, hidden[i].z, key.z, q.z, k.z);
    add_pair(sums, hidden[i].w, key.w, q.w, k.w);
  }
  const float gate = rows.is_active ? gate_of(block_sum(sums), a.dim, a.eps) : 0.0F;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int vector = static_cast<int>(threadIdx.x) + i * kGateThreads;
    if (vector >= vectors) continue;
    uint4 result = hidden[i];
    if (rows.is_active) {
      result = {
          inject_pair(hidden[i].x, value[i].x, gate), inject_pair(hidden[i].y, value[i].y, gate),
          inject_pair(hidden[i].z, value[i].z, gate), inject_pair(hidden[i].w, value[i].w, gate)};
    }
    reinterpret_cast<uint4*>(rows.out)[vector] = result;
  }
}

/// Rows of any width and alignment.
///
/// Grid:   tokens * hc_mult blocks. Block: kGateThreads.
/// Shared: static. Sync: one barrier.
__global__ void __launch_bounds__(kGateThreads)
    gate_elements_kernel(const __grid_constant__ GateArguments a) {
  const GateRows rows = gate_rows(a, blockIdx.x);
  const int first = static_cast<int>(threadIdx.x);
  if (!rows.is_active) {
    for (int i = first; i < a.dim; i += kGateThreads) rows.out[i] = rows.hidden[i];
    return;
  }
  GateSums sums;
  for (int i = first; i < a.dim; i += kGateThreads) {
    sums.add(to_float(rows.hidden[i]), to_float(rows.key[i]), to_float(rows.q_weight[i]),
             to_float(rows.k_weight[i]));
  }
  const float gate = gate_of(block_sum(sums), a.dim, a.eps);
  for (int i = first; i < a.dim; i += kGateThreads) {
    rows.out[i] = to_bf16(to_float(rows.hidden[i]) + gate * to_float(rows.value[i]));
  }
}

}  // namespace penstock::detail
