#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gate/strategies/strategies.hpp"
#include "penstock/gate/gate_linear.hpp"

namespace penstock::detail {

/// The part of the weight that a strategy needs; Auto: what the planner wants resident.
WeightPart part_for(const GateShape& shape, const GateOptions& options, WeightPart given,
                    int ranks);

/// Ways for data between ranks.
struct Ways {
  bool exchange = true;       ///< A communicator that moves the device's memory.
  bool gather_weight = true;  ///< The weight can travel and there is room for it.
  bool identical = true;      ///< Results of identical rows can be gathered.
};

/// Strategies that calls of a gate may end up with; empty if none of its strategies has a way.
/// Never Auto.
std::vector<GateStrategy> candidates_for(GateStrategy strategy, WeightPart resident, int ranks,
                                         const Ways& ways);

/// Workspace of `strategy` for calls of up to `tokens` tokens a rank.
std::size_t workspace_of(const GateContext& gate, GateStrategy strategy, std::int64_t tokens);

/// Workspace that serves calls of any size.
std::size_t workspace_of_any(const GateContext& gate, std::span<const GateStrategy> candidates);

/// The block of tokens with which all candidates and `stream_bytes` stay within the limit.
///
/// Errors: InvalidArgument with the least limit that works.
std::int64_t choose_block(GateContext gate, std::span<const GateStrategy> candidates,
                          std::size_t stream_bytes, std::optional<std::size_t> max_temp_bytes);

/// Tokens per rank of one call.
struct CallCounts {
  std::vector<std::int64_t> distinct;  ///< Of every rank, without the identical ones.
  std::int64_t longest = 0;            ///< The largest of them.
};

/// The range of identical rows that a call means.
IndexRange identical_range(const GateCall& call, GateStrategy strategy);

/// Errors: InvalidArgument for anything about the call that this rank can see by itself.
void check_call(const GateContext& gate, GateStrategy strategy, const GateCall& call);

/// How learn_counts goes about it.
struct CountRules {
  bool compares = false;         ///< Ask the other ranks even if the call has token_counts.
  bool needs_all = false;        ///< Of the other ranks too.
  bool splits_identical = true;  ///< Identical rows are not among the counted ones.
};

/// Checks the call and learns the other ranks' token counts, or takes them from it.
///
/// Collective: if `compares`, or if `needs_all` and the call has no token_counts.
/// Errors:     as check_call; when ranks talk, on all of them alike.
void learn_counts(const GateContext& gate, GateStrategy strategy, const GateCall& call,
                  const CountRules& rules, CallCounts& counts);

}  // namespace penstock::detail
