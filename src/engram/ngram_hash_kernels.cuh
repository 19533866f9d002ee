#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "engram/ngram_hash_cuda.hpp"
#include "engram/ngram_hash_math.hpp"

// Device code of the n-gram hash. The arithmetic is that of ngram_hash_math.hpp.
namespace penstock::detail {

/// Tokens of one block: one warp walks their histories, then all threads hash them.
inline constexpr int kHashTile = 32;

/// Tokens of this step.
__device__ inline std::int64_t step_tokens(const std::int32_t* num_tokens, std::int64_t most) {
  if (num_tokens == nullptr) return most;
  return min(max(static_cast<std::int64_t>(__ldg(num_tokens)), std::int64_t{0}), most);
}

/// Writes the compressed ids that the n-grams ending at `token` are made of, newest first.
__device__ inline void walk_history(const NgramHashArguments& a, const NgramBatch& batch,
                                    std::int64_t token, std::int32_t* history) {
  const std::int32_t id = batch.token_ids[token];
  if (!is_hashable(a.parameters, id)) {
    static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t), "the counter's own width");
    atomicAdd(reinterpret_cast<unsigned long long*>(a.rejected), 1ULL);
  }
  HistoryWalk walk(a.parameters, batch, a.slots, token, request_of_token(batch, token));
  for (int shift = 0; shift <= a.parameters.orders; ++shift) history[shift] = walk.next(shift);
}

/// The row id of one column of one layer.
__device__ inline std::int32_t row_of_column(const NgramHashParameters& parameters, int layer,
                                             int column, const std::int32_t* history) {
  const std::uint64_t* multipliers =
      parameters.multipliers + std::int64_t{layer} * (parameters.orders + 1);
  const int order = column / parameters.heads;
  std::uint64_t hash = static_cast<std::uint64_t>(history[0]) * multipliers[0];
  for (int n = 1; n <= order + 1; ++n) {
    hash ^= static_cast<std::uint64_t>(history[n]) * multipliers[n];
  }
  const std::int64_t i = std::int64_t{layer} * parameters.orders * parameters.heads + column;
  return static_cast<std::int32_t>(
      parameters.offsets[i] + fast_modulo(hash, parameters.primes[i], parameters.reciprocals[i]));
}

/// Row ids of every token, layer and column.
///
/// Grid:   one block for kHashTile tokens. Block: at least kHashTile threads.
/// Shared: kHashTile * (orders + 1) int32. Sync: one barrier between the walk and the hash.
__global__ void __launch_bounds__(256)
    hash_tokens_kernel(const __grid_constant__ NgramHashArguments a) {
  extern __shared__ std::int32_t histories[];
  const NgramHashParameters& parameters = a.parameters;
  NgramBatch batch = a.batch;
  batch.tokens = step_tokens(a.num_tokens, a.batch.tokens);
  const std::int64_t first = std::int64_t{blockIdx.x} * kHashTile;
  const int history_ids = parameters.orders + 1;
  if (threadIdx.x < kHashTile && first + threadIdx.x < batch.tokens) {
    walk_history(a, batch, first + threadIdx.x, histories + threadIdx.x * history_ids);
  }
  __syncthreads();
  const int columns = parameters.orders * parameters.heads;
  const int row = parameters.layers * columns;
  const auto rest = static_cast<int>(min(std::int64_t{kHashTile}, a.batch.tokens - first));
  std::int32_t* out = a.out + first * row;
  for (int i = static_cast<int>(threadIdx.x); i < rest * row; i += static_cast<int>(blockDim.x)) {
    const int token = i / row;
    const int layer = (i - token * row) / columns;
    const int column = i - token * row - layer * columns;
    const bool is_there = first + token < batch.tokens;
    out[i] = is_there ? row_of_column(parameters, layer, column, histories + token * history_ids)
                      : std::int32_t{-1};
  }
}

/// Compressed ids of a step's tokens to their slots.
///
/// Grid:   any; the loop strides over it. Block: any.
/// Shared: none. Sync: none; slots of one step differ.
__global__ void write_slots_kernel(const __grid_constant__ SlotWriteArguments a) {
  const std::int64_t tokens = step_tokens(a.num_tokens, a.tokens);
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t t = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; t < tokens;
       t += stride) {
    const std::int64_t slot = a.slot_mapping[t];
    if (slot < 0 || slot >= a.num_slots) continue;
    a.values[slot] = compressed_id(a.parameters, a.token_ids[t]);
  }
}

}  // namespace penstock::detail
