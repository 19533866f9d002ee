#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/comm/exchange.hpp"
#include "penstock/comm/nodes.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/table/table.hpp"
#include "penstock/topology/parallel_config.hpp"

namespace penstock {

/// What EngramStage::open is asked for. Equal on all ranks, but for the device's index.
struct EngramStageOptions {
  Placement placement = Placement::Auto;
  HostBacking backing = HostBacking::Auto;  ///< Of host_shared.
  Device device = {};
  /// Spread private tables (`host`, `device`) over the data-parallel ranks of a node as well.
  bool shards_over_dp = false;
  /// Leave each tensor-parallel rank with its own run of ceil(T / tp) tokens.
  bool is_sequence_parallel = false;
  std::int64_t max_tokens = 8192;  ///< Of one replica in one step.
  bool may_fall_back = false;
  /// On CUDA: bring rows of other ranks' shards here through NCCL. Without it ranks that could gather
  /// read all columns themselves, and shards_over_dp is refused. Every rank needs a GPU of its own.
  bool uses_nccl = false;
  ReachProbe reach = {};  ///< How nodes are found; empty: by who can open whose memory.
  /// Where rows come from; empty: the model's own tables.
  std::function<std::shared_ptr<const RowSource>(int layer_id)> rows = {};
};

/// Time spent so far in each part, on the calling thread (CPU).
struct EngramStageTimes {
  std::chrono::nanoseconds read{};      ///< Inside the readers, on their own threads.
  std::chrono::nanoseconds wait{};      ///< Of that, how long this rank stood waiting.
  std::chrono::nanoseconds exchange{};  ///< Ids to their shards and rows back.
  std::chrono::nanoseconds project{};
  std::chrono::nanoseconds gate{};
};

/// The Engram layers of one pipeline stage on one rank of a parallel deployment: shards or shares
/// the tables, sends ids to where the rows are, reads ahead, brings the rows back, injects.
///
/// Collective: open() over `world`; start(), rows() and forward() over the ranks of this stage, in
///             the same order for the same layers, also on ranks without tokens.
/// Threads:    one call at a time.
class EngramStage {
 public:
  /// `layers`: the model layer ids that this rank's stage owns; may be empty, and then every call
  /// does nothing. All ranks of a stage pass the same.
  ///
  /// Errors: as Table::open; InvalidArgument if the parallel sizes do not multiply to world.size(),
  ///         and on every rank if options, or layers within a stage, differ between ranks.
  static EngramStage open(const ModelDir& model, const ParallelConfig& parallel,
                          Communicator& world, std::vector<int> layers,
                          const EngramStageOptions& options);
  ~EngramStage();
  EngramStage(EngramStage&&) noexcept;
  EngramStage& operator=(EngramStage&&) noexcept;

  /// Starts the reads of every layer.
  ///
  /// Shapes: row_ids [T, all Engram layers of the model, columns] of this rank's replica; T may be 0
  ///         and may differ between replicas.
  /// Device: row_ids lie on options.device. On CUDA they must stay until the rows have been read.
  /// Async:  on CUDA the reads begin after what `stream` has enqueued so far, on streams of their
  ///         own.
  /// Errors: InvalidArgument for ids of another shape or more than max_tokens tokens.
  void start(std::span<const std::int32_t> row_ids, StreamRef stream = {});

  /// The tokens of this step that this rank will inject.
  TokenRange tokens() const;

  /// Waits for a layer's rows, brings them together and gives [tokens().count, columns * head_dim].
  /// Valid until the next start(), on the stage's device, in the order of `stream`.
  ///
  /// Errors: NotFound for a layer of another stage; InvalidArgument before the first start().
  std::span<const BF16> rows(int layer_id, StreamRef stream = {});

  /// rows(), then projection and gate.
  ///
  /// Shapes: hidden and out [tokens().count, hc, dim]; mask [tokens().count] or empty.
  /// Async:  on CUDA everything is ordered on `stream`; nothing waits on the host.
  /// Errors: as rows(); InvalidArgument for sizes that do not fit.
  void forward(int layer_id, std::span<const BF16> hidden, std::span<const std::uint8_t> mask,
               std::span<BF16> out, StreamRef stream = {});

  std::span<const int> layers() const;
  int node() const;     ///< The node of this rank, as EngramStageOptions::reach found it.
  int sharers() const;  ///< Ranks that keep one copy of each table together; 1: it is private.
  const Table& table(int layer_id) const;
  std::int64_t staging_bytes(int layer_id) const;  ///< Of the reads ahead of one layer.
  EngramStageTimes times(int layer_id) const;

 private:
  struct State;
  explicit EngramStage(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock
