#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/engram/ngram_hasher.hpp"

namespace penstock {

/// One step's tokens in device memory. Shapes are those of the largest step that a captured graph
/// serves; see TokenBatch for what the arrays hold.
struct DeviceTokenBatch {
  const std::int32_t* token_ids = nullptr;    ///< [T]
  const std::int32_t* query_start = nullptr;  ///< [Q + 1]; entries past the last request repeat it.
  const std::int64_t* positions = nullptr;    ///< [T]
  const std::int32_t* lookback = nullptr;     ///< [Q, N - 1], newest first; null: nothing is known.
  std::int64_t tokens = 0;                    ///< T
  std::int64_t requests = 0;                  ///< Q, at least 1 unless T is 0.
  /// Device memory with the number of tokens of this step, at most T; null: T.
  const std::int32_t* num_tokens = nullptr;
};

/// Compressed ids by KV slot, for engines that know where a token's KV lies but not its history.
/// All pointers are device memory of the caller.
struct DeviceSlotCache {
  std::int32_t* values = nullptr;              ///< [num_slots], zeros at first.
  const std::int64_t* slot_mapping = nullptr;  ///< [T] slot of each token; -1: none.
  const std::int32_t* block_table = nullptr;  ///< [rows, max_blocks] block of each request's block.
  std::int64_t num_slots = 0;
  std::int64_t rows = 0;
  std::int64_t max_blocks = 0;
  std::int64_t block_size = 1;
};

/// NgramHasher on a GPU: the same numbers, one kernel for all layers.
///
/// Threads: const members are safe from any thread.
class NgramHasherCuda {
 public:
  /// Copies the hasher's tables to the device.
  ///
  /// Errors: Unsupported in a build without CUDA; OutOfMemory.
  NgramHasherCuda(const NgramHasher& hasher, Device device);

  /// Shapes: out [T, layers, columns], device memory. Rows of tokens past `num_tokens` become -1.
  /// Range:  a token id that is neither dead nor in the map counts as dead, and is counted.
  /// Async:  one kernel on `stream`; the batch's memory and out must outlive it. Legal in capture.
  /// Errors: InvalidArgument for sizes that do not fit.
  void hash(const DeviceTokenBatch& batch, std::span<std::int32_t> out, StreamRef stream) const;

  /// The same, where positions that neither the batch nor the lookback knows come from the cache.
  /// The step's own tokens are first written to it.
  ///
  /// Async: two kernels on `stream`.
  void hash(const DeviceTokenBatch& batch, const DeviceSlotCache& cache,
            std::span<std::int32_t> out, StreamRef stream) const;

  /// Token ids outside the map that hash() has met so far. Waits for the device.
  std::uint64_t rejected_tokens() const;

  /// Device memory of the tables.
  std::int64_t resident_bytes() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace penstock
