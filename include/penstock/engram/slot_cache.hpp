#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "penstock/engram/ngram_hasher.hpp"

namespace penstock {

/// Which block of the KV cache holds each block of positions of each request.
struct BlockTable {
  /// [rows, max_blocks]; entries that nobody uses may be any.
  std::span<const std::int32_t> blocks;
  std::int64_t max_blocks = 0;
};

/// The compressed id last written into every slot of a KV cache, for engines that know KV slots but
/// not the tokens behind them. A slot is fixed by request and position, so shared prefixes and
/// rejected speculative tokens need no care: whoever writes a slot again writes the right id.
///
/// Range: a slot that was never written counts as compressed id 0, and nothing can tell; tokens
///        whose KV came from elsewhere need a lookback window, which goes first.
/// Threads: write() and reset() must not overlap with other calls.
class SlotCache {
 public:
  /// Errors: InvalidArgument below 1.
  SlotCache(std::int64_t num_blocks, int block_size);

  /// Stores the step's tokens; call it before hash().
  ///
  /// Shapes: token_ids and slot_mapping [T].
  /// Range:  a slot of -1 is padding and stores nothing; its token may be any.
  /// Errors: InvalidArgument for a slot outside the cache or a token that cannot be hashed; nothing
  ///         is stored then.
  void write(const NgramHasher& hasher, std::span<const std::int32_t> token_ids,
             std::span<const std::int64_t> slot_mapping);

  /// NgramHasher::hash, which asks this cache for what the window does not know.
  ///
  /// Shapes: as NgramHasher::hash, but batch.lookback may be empty: nothing is known; block_table
  ///         has a row for each request.
  /// Range:  whatever the block table holds, reads stay inside the cache.
  /// Errors: as NgramHasher::hash; InvalidArgument for a block table of another size.
  void hash(const NgramHasher& hasher, const TokenBatch& batch, const BlockTable& block_table,
            std::span<std::int32_t> out) const;

  /// Forgets everything, as after the KV cache has been made anew.
  void reset();

  std::int64_t num_slots() const { return static_cast<std::int64_t>(values_.size()); }
  int block_size() const { return block_size_; }

 private:
  int block_size_ = 0;
  std::vector<std::int32_t> values_;  ///< Compressed ids; -1 for a dead token.
};

}  // namespace penstock
