#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "engram/stage/stage_groups.hpp"
#include "penstock/comm/exchange.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/engram/engram_stage.hpp"
#include "penstock/reader/prefetcher.hpp"

namespace penstock::detail {

/// The rows of one layer on one rank: reads its own shard, then brings all columns of its own
/// tokens together.
class LayerRows {
 public:
  LayerRows(const Table& table, const StageGroups& groups, const EngramStageOptions& options);

  /// Starts reading. `ids` are those of the exchange group's slots, or of this replica's tokens.
  void start(const RowIds& ids, StreamRef stream);

  /// Waits for the rows of this rank's shard, [staged tokens, staged_token_bytes()]. A second call
  /// before the next start() does not wait again.
  std::span<const std::byte> wait(StreamRef stream);
  std::int64_t staged_token_bytes() const;

  /// Room for what the exchange brings of `tokens` tokens from `sources` ranks.
  std::span<std::byte> room_for_exchange(std::int64_t tokens, int sources);

  /// [mine.count, columns * head_dim], where `mine` is what to end up with. With an exchange group
  /// the room must have been filled. A second call before the next start() gives the same rows.
  std::span<const BF16> finish(const StageGroups& groups, const TokenRange& mine, StreamRef stream);

  const Table& table() const { return prefetcher_.table(); }
  std::int64_t staging_bytes() const { return prefetcher_.staging_bytes(); }
  EngramStageTimes& times() { return times_; }

 private:
  Device device() const { return table().device(); }
  std::span<const BF16> bring_together(const StageGroups& groups, std::span<const std::byte> staged,
                                       const TokenRange& mine, StreamRef stream);
  std::span<const BF16> unpack(std::span<const std::byte> records, std::int64_t tokens,
                               StreamRef stream);
  const std::int32_t* numbers(std::int64_t count);
  std::span<const std::byte> merged(std::span<const std::byte> rows, int sources,
                                    std::int64_t token_bytes, Buffer& room, StreamRef stream);
  std::span<const std::byte> merge_exchanged(const StageGroups& groups, StreamRef stream);
  std::span<const std::byte> gather(const StageGroups& groups, std::span<const std::byte> rows,
                                    const TokenRange& mine, StreamRef stream);

  Prefetcher prefetcher_;
  std::optional<Ticket> ticket_;
  bool has_waited_ = false;
  bool is_packed_ = false;  ///< Rows travel as records and are dequantised at the end.
  bool is_row_sharded_ = false;
  bool is_sequence_parallel_ = false;
  int columns_ = 0;
  std::span<std::byte> exchanged_;
  Buffer exchange_room_;  ///< Rooms grow to the largest step and stay.
  Buffer exchange_merge_room_;
  Buffer gather_room_;
  Buffer gather_merge_room_;
  Buffer row_room_;
  Buffer numbers_;
  std::optional<std::span<const BF16>> finished_;
  EngramStageTimes times_;
};

}  // namespace penstock::detail
