#pragma once

#include <cstdint>

#include "cuda/ptx.cuh"
#include "gate/gate_math.cuh"
#include "gate/one_shot_cuda.hpp"

namespace penstock::detail {

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
