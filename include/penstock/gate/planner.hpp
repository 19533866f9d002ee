#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/gate/strategy.hpp"

namespace penstock {

/// What a machine can do, as far as a gate is concerned.
struct GateRates {
  double link_bytes_per_second = 0;    ///< One rank to the others, one direction.
  double flops_per_second = 0;         ///< Of large bf16 products.
  double memory_bytes_per_second = 0;  ///< Of the memory that holds the weight.
  double collective_seconds = 0;       ///< Fixed cost of one collective.

  friend bool operator==(const GateRates&, const GateRates&) = default;
};

/// Rates of a typical machine: H200 GPUs with NVLink, or one CPU socket.
GateRates typical_gate_rates(DeviceKind device);

/// Tokens of a rank that a gate takes at once where max_temp_bytes sets no other number.
/// `overlaps_blocks`: of a k_shard that does so.
std::int64_t default_gate_block(int ranks, bool overlaps_blocks);

/// One question to the planner. Equal on all ranks; the answer then is too.
struct GatePlanInput {
  GateShape shape;
  int ranks = 1;
  std::int64_t tokens = 0;            ///< Most distinct tokens of any rank.
  std::int64_t identical_tokens = 0;  ///< Tokens that are equal on all ranks, beside them.
  WeightPart resident = WeightPart::Rows;
  GateRates rates;
  double window_seconds = 0;  ///< Work before the gate under which a weight can travel.
  std::optional<std::size_t> max_temp_bytes = {};
  /// Tokens of a rank that k_shard and n_shard take at once; absent: default_gate_block().
  std::optional<std::int64_t> block_tokens = {};
  bool overlaps_blocks = false;     ///< k_shard exchanges blocks while another one is multiplied.
  bool may_exchange_tokens = true;  ///< A communicator for the device's memory is there.
  bool may_gather_weight = true;    ///< Memory for weights on their way has been taken.
  bool peers_are_readable = false;  ///< Products read the other ranks' rows where they are.
  int weight_bytes = 2;             ///< Of one element.
  int activation_bytes = 2;
  int k_shard_wire_bytes = 2;  ///< Of one partial sum.
  int n_shard_wire_bytes = 4;  ///< Of one projection.
};

/// What one strategy costs a rank.
struct GateCost {
  GateStrategy strategy = GateStrategy::Replicated;
  std::int64_t resident_bytes = 0;
  std::int64_t sent_bytes = 0;  ///< As many are received.
  std::int64_t temp_bytes = 0;
  double seconds = 0;       ///< Of one layer in a chain of layers.
  bool is_possible = true;  ///< The resident part and the memory limit allow it.
};

/// The planner's answer.
struct GatePlan {
  GateStrategy distinct = GateStrategy::Replicated;   ///< For the distinct tokens.
  GateStrategy identical = GateStrategy::Replicated;  ///< For the identical ones.
  std::vector<GateCost> costs;                        ///< Of the distinct tokens, each strategy.
  std::vector<GateCost> identical_costs;              ///< Of the identical ones.
};

/// Picks the fastest possible strategy. A pure function.
///
/// Errors: InvalidArgument for sizes below 0 or ranks below 1, for sizes whose bytes 64 bits do not
///         count, and where nothing is possible.
GatePlan plan_gate(const GatePlanInput& input);

/// Bytes that a rank sends in one layer. 0 for Replicated, and for everything in a group of one.
std::int64_t gate_sent_bytes(GateStrategy strategy, const GatePlanInput& input);

/// Which part of the weight a rank should keep: all of it if it is tiny (up to 1 MiB, as headwise
/// gates are) or within `max_resident_bytes`, else its rows.
WeightPart plan_gate_residency(const GateShape& shape, int ranks,
                               std::optional<std::size_t> max_resident_bytes);

/// The plan as a table for people.
std::string to_string(const GatePlan& plan);

}  // namespace penstock
