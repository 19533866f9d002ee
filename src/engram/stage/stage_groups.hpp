#pragma once

#include <memory>

#include "penstock/comm/communicator.hpp"
#include "penstock/engram/engram_stage.hpp"
#include "penstock/table/table.hpp"
#include "penstock/topology/parallel_config.hpp"

namespace penstock::detail {

/// With whom a rank shares, exchanges and gathers; null where it would be alone.
struct StageGroups {
  std::unique_ptr<Communicator> sharing;        ///< Ranks that keep one copy of the shard's memory.
  std::unique_ptr<Communicator> exchange_host;  ///< What `exchange` lives on, if it is of GPUs.
  std::unique_ptr<Communicator> gather_host;    ///< The same for `gather`.
  std::unique_ptr<Communicator> exchange;       ///< Data-parallel ranks that hold other shards.
  std::unique_ptr<Communicator> gather;         ///< Tensor-parallel ranks that hold other shards.
  TableShard shard;                             ///< TP-major over gather x exchange.
  int node = 0;
  int tp_rank = 0;
  int tp_size = 1;
};

/// Decides who holds what.
///
/// host_shared: a node keeps one copy; its ranks of equal tp rank share that rank's shard.
/// peer:        the GPUs of a node hold a part each and every rank reads all of it.
/// host, device: every rank has memory of its own, one shard of tp, or of tp times the edp group
///              when `options.shards_over_dp` says so.
/// file:        as host; the page cache is what is shared.
/// On CUDA, ranks that could gather read all columns instead.
///
/// Collective: over `world`.
StageGroups make_stage_groups(const ParallelConfig& parallel, Communicator& world,
                              const EngramStageOptions& options);

}  // namespace penstock::detail
