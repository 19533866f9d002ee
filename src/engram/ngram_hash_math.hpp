#pragma once

#include <cstdint>

#include "engram/uint128.hpp"

// The arithmetic of the n-gram hash, one token and one layer at a time. Compiles for the host and,
// with --expt-relaxed-constexpr, for CUDA devices: plain structs and pointers, no exceptions.
// Everything here is in bounds for any input.
namespace penstock::detail {

/// A compressed id that stands for a token which takes part in no n-gram.
inline constexpr std::int32_t kDeadId = -1;

/// No token id equals it.
inline constexpr std::int64_t kNoDeadToken = std::int64_t{1} << 40;

/// Everything that stays the same from step to step. Points into memory that somebody else owns.
struct NgramHashParameters {
  int layers = 0;
  int orders = 0;  ///< N - 1, which is also the depth of the lookback window.
  int heads = 0;
  std::int32_t pad_id = 0;  ///< Compressed.
  std::int64_t dead_token = kNoDeadToken;
  std::int32_t num_tokens = 0;                 ///< Length of token_map.
  const std::int32_t* token_map = nullptr;     ///< [num_tokens], values >= 0.
  const std::uint32_t* primes = nullptr;       ///< [layers, orders * heads], at most 2^31.
  const std::uint64_t* reciprocals = nullptr;  ///< The same shape: modulo_reciprocal(prime).
  const std::uint32_t* offsets = nullptr;      ///< The same shape.
  const std::uint64_t* multipliers = nullptr;  ///< [layers, orders + 1]
};

/// One step's tokens; see TokenBatch.
struct NgramBatch {
  const std::int32_t* token_ids = nullptr;    ///< [tokens]
  const std::int64_t* positions = nullptr;    ///< [tokens]
  const std::int32_t* query_start = nullptr;  ///< [requests + 1]
  const std::int32_t* lookback = nullptr;     ///< [requests, orders], or null: nothing is known.
  std::int64_t tokens = 0;
  std::int64_t requests = 0;  ///< At least 1.
};

/// Where compressed ids of earlier steps may be found; see SlotCache. No values: nowhere.
struct NgramSlots {
  const std::int32_t* values = nullptr;       ///< [num_slots]
  const std::int32_t* block_table = nullptr;  ///< [rows, max_blocks]
  std::int64_t num_slots = 0;                 ///< At least 1.
  std::int64_t rows = 0;                      ///< At least 1.
  std::int64_t max_blocks = 0;                ///< At least 1.
  std::int64_t block_size = 1;
};

/// floor(2^64 / divisor), for divisor from 2 to 2^31.
constexpr std::uint64_t modulo_reciprocal(std::uint32_t divisor) {
  return static_cast<std::uint64_t>((static_cast<UInt128>(1) << 64) / divisor);
}

/// value % divisor, exactly, for any value.
constexpr std::uint32_t fast_modulo(std::uint64_t value, std::uint32_t divisor,
                                    std::uint64_t reciprocal) {
  // The reciprocal is short by less than 1, so the quotient is short by less than
  // value / 2^64 < 1 before rounding down: by at most 1 after it. The remainder is then below
  // 2 * divisor <= 2^32, and 32 bits of the difference are all of it.
  const std::uint64_t quotient = multiply_high(value, reciprocal);
  const std::uint32_t remainder =
      static_cast<std::uint32_t>(value) - static_cast<std::uint32_t>(quotient) * divisor;
  return remainder >= divisor ? remainder - divisor : remainder;
}

/// Whether `token` may be hashed: it is the dead token, or in the map.
constexpr bool is_hashable(const NgramHashParameters& parameters, std::int32_t token) {
  return (token >= 0 && token < parameters.num_tokens) || token == parameters.dead_token;
}

/// Ids outside the map count as dead: a device can neither refuse them nor read past its map.
constexpr std::int32_t compressed_id(const NgramHashParameters& parameters, std::int32_t token) {
  const bool is_dead =
      token == parameters.dead_token || token < 0 || token >= parameters.num_tokens;
  return is_dead ? kDeadId : parameters.token_map[token];
}

/// The request that token `token` belongs to; tokens past the last boundary count to the last.
constexpr std::int64_t request_of_token(const NgramBatch& batch, std::int64_t token) {
  std::int64_t low = 0;
  std::int64_t high = batch.requests - 1;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (batch.query_start[middle + 1] <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// Difference that wraps around: padding tokens may carry any position.
constexpr std::int64_t position_before(std::int64_t position, std::int64_t distance) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(position) -
                                   static_cast<std::uint64_t>(distance));
}

/// Position of the first token that a request has in this step.
constexpr std::int64_t chunk_start(const NgramBatch& batch, std::int64_t request) {
  const std::int64_t first = batch.query_start[request];
  return batch.positions[first < batch.tokens ? first : batch.tokens - 1];
}

/// What the slot cache holds for `position`; whatever it is asked, it reads inside the cache.
constexpr std::int32_t slot_value(const NgramSlots& slots, std::int64_t request,
                                  std::int64_t position) {
  const std::int64_t last_position = slots.max_blocks * slots.block_size - 1;
  std::int64_t at = position < 0 ? 0 : position;
  if (at > last_position) at = last_position;
  const std::int64_t row = request < slots.rows ? request : slots.rows - 1;
  const std::int64_t block = slots.block_table[row * slots.max_blocks + at / slots.block_size];
  std::int64_t slot = block * slots.block_size + at % slots.block_size;
  if (slot < 0) slot = 0;
  if (slot > slots.num_slots - 1) slot = slots.num_slots - 1;
  return slots.values[slot];
}

/// Walks from a token back through its history: from the batch, then from the lookback window, then
/// from the slot cache.
class HistoryWalk {
 public:
  constexpr HistoryWalk(const NgramHashParameters& parameters, const NgramBatch& batch,
                        const NgramSlots& slots, std::int64_t token, std::int64_t request)
      : parameters_(parameters),
        batch_(batch),
        slots_(slots),
        token_(token),
        request_(request),
        chunk_start_(chunk_start(batch, request)) {}

  /// The compressed id that the hash uses `shift` tokens back. Ask for shifts 0, 1, 2, ... in turn:
  /// a dead token, or the start of the sequence, hides everything older.
  constexpr std::int32_t next(int shift) {
    const std::int64_t position = position_before(batch_.positions[token_], shift);
    const std::int32_t found = value_at(position, shift);
    is_blocked_ = is_blocked_ || position < 0 || found == kDeadId;
    return is_blocked_ ? parameters_.pad_id : found;
  }

 private:
  constexpr std::int32_t value_at(std::int64_t position, int shift) const {
    if (position >= chunk_start_) {
      const std::int64_t source = token_ - shift;
      return compressed_id(parameters_, batch_.token_ids[source < 0 ? 0 : source]);
    }
    const std::int64_t column = position_before(position_before(chunk_start_, 1), position);
    if (batch_.lookback != nullptr && column >= 0 && column < parameters_.orders) {
      const std::int32_t token = batch_.lookback[request_ * parameters_.orders + column];
      if (token >= 0) return compressed_id(parameters_, token);
    }
    // A position that nobody knows counts as padding and hides nothing.
    return slots_.values == nullptr ? parameters_.pad_id : slot_value(slots_, request_, position);
  }

  const NgramHashParameters& parameters_;
  const NgramBatch& batch_;
  const NgramSlots& slots_;
  std::int64_t token_;
  std::int64_t request_;
  std::int64_t chunk_start_;
  bool is_blocked_ = false;
};

/// Row ids of all heads of one order, for the hash of the n-gram up to that order.
///
/// Shapes: out [heads]; `column` is the first of them, counted over all layers.
constexpr void rows_of_order(const NgramHashParameters& parameters, std::int64_t column,
                             std::uint64_t hash, std::int32_t* out) {
  for (int head = 0; head < parameters.heads; ++head) {
    const std::int64_t i = column + head;
    const std::uint32_t row =
        parameters.offsets[i] + fast_modulo(hash, parameters.primes[i], parameters.reciprocals[i]);
    out[head] = static_cast<std::int32_t>(row);
  }
}

/// Row ids of one token in one layer.
///
/// Shapes: history [orders + 1], the token itself first; out [orders * heads].
constexpr void rows_of_history(const NgramHashParameters& parameters, int layer,
                               const std::int32_t* history, std::int32_t* out) {
  const std::int64_t columns = std::int64_t{parameters.orders} * parameters.heads;
  const std::uint64_t* multipliers =
      parameters.multipliers + std::int64_t{layer} * (parameters.orders + 1);
  std::uint64_t hash = static_cast<std::uint64_t>(history[0]) * multipliers[0];
  for (int order = 0; order < parameters.orders; ++order) {
    hash ^= static_cast<std::uint64_t>(history[order + 1]) * multipliers[order + 1];
    const std::int64_t first = std::int64_t{order} * parameters.heads;
    rows_of_order(parameters, layer * columns + first, hash, out + first);
  }
}

}  // namespace penstock::detail
