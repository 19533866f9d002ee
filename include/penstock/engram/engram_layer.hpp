#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/engram/engram_injection.hpp"
#include "penstock/reader/prefetcher.hpp"
#include "penstock/table/table.hpp"

namespace penstock {

/// The shape of a layer's table as config.json gives it.
///
/// Errors: NotFound if the layer has no Engram.
TableSpec engram_table_spec(const ModelConfig& config, int layer_id);

/// What EngramLayer::open is asked for; see TableOptions for what is said of the table there.
struct EngramLayerOptions {
  Placement placement = Placement::Auto;
  Device device = {};
  Communicator* group = nullptr;   ///< Ranks of a node that share or, for `peer`, spread the table.
  std::int64_t max_tokens = 8192;  ///< Of one step.
  int slots = 2;                   ///< Tickets that may be held at once.
  bool may_fall_back = false;
  HostBacking backing = HostBacking::Auto;  ///< Of host_shared.
};

/// One Engram layer on one rank that reads the whole table: rows, projection, gate, injection.
///
/// Threads: one call at a time.
class EngramLayer {
 public:
  /// Opens the table and the weights of a layer.
  ///
  /// Collective: over `options.group`.
  /// Errors:     as Table::open, load_engram_weights and EngramInjection.
  static EngramLayer open(const ModelDir& model, int layer_id,
                          const EngramLayerOptions& options = {});

  /// A layer of a table and weights that are there already; of `options`, what is said of opening a
  /// table means nothing.
  ///
  /// Errors: InvalidArgument if the table holds only a shard of the columns; as Prefetcher and
  ///         EngramInjection.
  EngramLayer(Table table, const EngramWeights& weights, const EngramLayerOptions& options);

  /// Starts reading the rows of a step. See Prefetcher::start.
  Ticket prefetch(const RowIds& ids, StreamRef producer = {});

  /// Waits for the ticket, projects its rows and injects them; releases the ticket's slot.
  ///
  /// Shapes: hidden and out [T, hc, dim], mask [T] or empty; T is the ticket's. `out` may be
  ///         `hidden`.
  /// Async:  on CUDA everything is ordered on `stream`.
  /// Errors: InvalidArgument for an empty ticket or sizes that do not fit; what the read failed with.
  void forward(std::span<const BF16> hidden, Ticket& ticket, std::span<const std::uint8_t> mask,
               std::span<BF16> out, StreamRef stream = {});

  const Table& table() const { return prefetcher_.table(); }
  const EngramInjection& injection() const { return injection_; }

 private:
  Prefetcher prefetcher_;
  EngramInjection injection_;
};

}  // namespace penstock
