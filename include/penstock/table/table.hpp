#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/table/column_shards.hpp"
#include "penstock/table/host_backing.hpp"
#include "penstock/table/placement.hpp"
#include "penstock/table/row_source.hpp"
#include "penstock/table/table_view.hpp"

namespace penstock {

/// The shape of one layer's table.
struct TableSpec {
  int layer_id = 0;
  std::vector<std::int64_t> head_sizes;  ///< Rows of each column; their sum is at most num_rows.
  std::int64_t num_rows = 0;
  int head_dim = 0;
};

/// Which part of a table a rank holds.
///
/// Whole columns where column_shards allows it, else a range of row ids of every column.
struct TableShard {
  int index = 0;
  int count = 1;
};

/// What Table::open is asked for. Equal on all ranks of `group`, but for the device's index.
struct TableOptions {
  Placement placement = Placement::Auto;
  TableShard shard = {};
  Device device = {};             ///< Where the rows are read.
  Communicator* group = nullptr;  ///< Ranks of one node that share the memory of this shard
                                  ///< (host_shared) or spread it (peer). Null: a group of one.
  bool may_fall_back = false;     ///< Take another placement, aloud, if this one cannot be had.
  HostBacking backing = HostBacking::Auto;  ///< Of host_shared; a named one is taken or an error,
                                            ///< and makes Auto mean host_shared.
};

/// What became of a table, for people and for metrics.
struct TableStatus {
  Placement placement = Placement::Host;  ///< In use.
  std::string backing;                    ///< For example "memfd, 4 KiB pages, sealed".
  std::string backing_choice;             ///< Of host_shared: why this backing, with what a probe
                                          ///< measured; "asked for" if it was named.
  std::int64_t resident_bytes = 0;        ///< Memory that this rank's process keeps for it.
  std::int64_t shared_bytes = 0;          ///< Of these, shared with other ranks.
  bool is_row_sharded = false;
  std::string degraded;  ///< Why a fallback was taken; empty if none was.
  double load_seconds = 0;
};

/// Rows of a table in some memory, read-only once opened. A cheap handle: copies share the memory,
/// and views and tickets keep it alive.
///
/// Threads: const members are safe from any thread.
class Table {
 public:
  /// Places and loads a shard.
  ///
  /// Collective: over `options.group`, all ranks with the same arguments, and tables in the same
  ///             order. One rank creates shared memory and loads it; readers see it only after it is
  ///             complete and sealed. Ranks wait for each other at the end of a stage only, never
  ///             tensor by tensor.
  /// Errors:     InvalidArgument for an illegal shard, or a backing named for another placement than
  ///             host_shared; Unsupported for a placement or backing that cannot be had here, with
  ///             what would work; OutOfMemory before anything is loaded; PeerFailed if another rank
  ///             failed, naming it and the stage. On any error nothing is left.
  static Table open(const TableSpec& spec, std::shared_ptr<const RowSource> rows,
                    const TableOptions& options = {});

  const TableSpec& spec() const;

  /// What readers take. Its addresses are valid while this table, a copy of it or keep_alive() lives.
  const TableView& view() const;

  /// Where the rows are read.
  Device device() const;
  const TableStatus& status() const;

  /// Row ids outside [-1, num_rows) that readers of this process have met so far. On CUDA, waits for
  /// the legacy default stream, and counts what has been read by then.
  std::uint64_t rejected_ids() const;

  /// Keeps the memory behind view() alive.
  std::shared_ptr<const void> keep_alive() const;

 private:
  struct State;
  explicit Table(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace penstock
