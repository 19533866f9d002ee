#pragma once

#include <cstdint>

#include "engram/ngram_hash_math.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

// The launchers behind NgramHasherCuda. A build without CUDA never calls them, so that it needs no
// definition.
namespace penstock::detail {

/// What the hash kernel needs to know; a kernel parameter. All pointers are device memory.
struct NgramHashArguments {
  NgramHashParameters parameters;
  NgramBatch batch;  ///< `tokens` is the largest count.
  NgramSlots slots = {};
  const std::int32_t* num_tokens = nullptr;  ///< Null: batch.tokens.
  std::uint64_t* rejected = nullptr;         ///< Counter of token ids outside the map.
  std::int32_t* out = nullptr;               ///< [batch.tokens, layers, columns]
};

void hash_tokens_cuda(const NgramHashArguments& arguments, Device device, StreamRef stream);

/// Writes the compressed ids of a step's tokens to their slots.
struct SlotWriteArguments {
  NgramHashParameters parameters;
  const std::int32_t* token_ids = nullptr;     ///< [tokens]
  const std::int64_t* slot_mapping = nullptr;  ///< [tokens]; outside [0, num_slots): not written.
  std::int64_t tokens = 0;
  const std::int32_t* num_tokens = nullptr;
  std::int32_t* values = nullptr;  ///< [num_slots]
  std::int64_t num_slots = 0;
};

void write_slots_cuda(const SlotWriteArguments& arguments, Device device, StreamRef stream);

}  // namespace penstock::detail
