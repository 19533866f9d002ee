#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engram/stage/stage_groups.hpp"
#include "penstock/comm/exchange.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/engram/engram_stage.hpp"
#include "penstock/reader/prefetcher.hpp"

namespace penstock::detail {

/// The rows of one layer on one rank: reads its own shard, then brings all columns of its own
/// tokens together.
class LayerRows {
 public:
  LayerRows(Table table, const StageGroups& groups, const EngramStageOptions& options);

  /// Starts reading. `ids` are those of the exchange group's slots, or of this replica's tokens.
  void start(const RowIds& ids, StreamRef stream);

  /// [mine.count, columns * head_dim]. `slots` as given to the exchange, `mine` what to end up with.
  /// A second call before the next start() gives the same rows without another exchange.
  std::span<const BF16> finish(const StageGroups& groups, const TokenSlots& slots,
                               const TokenRange& mine, StreamRef stream);

  const Table& table() const { return prefetcher_.table(); }
  EngramStageTimes& times() { return times_; }

 private:
  std::span<const BF16> bring_together(const StageGroups& groups, const TokenSlots& slots,
                                       const TokenRange& mine);
  std::span<const std::byte> exchange(const StageGroups& groups, const TokenSlots& slots);
  std::span<const std::byte> gather(const StageGroups& groups, std::span<const std::byte> rows,
                                    const TokenRange& mine);
  std::int64_t staged_token_bytes() const;

  Prefetcher prefetcher_;
  std::optional<Ticket> ticket_;
  bool is_packed_ = false;  ///< Rows travel as records and are dequantised at the end.
  bool is_row_sharded_ = false;
  bool is_sequence_parallel_ = false;
  int columns_ = 0;
  std::vector<std::byte> exchanged_;
  std::vector<std::byte> gathered_;
  std::vector<BF16> rows_;
  std::optional<std::span<const BF16>> finished_;
  EngramStageTimes times_;
};

}  // namespace penstock::detail
