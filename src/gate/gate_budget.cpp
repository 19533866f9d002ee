#include <algorithm>
#include <string>

#include "gate/gate_state.hpp"
#include "penstock/core/error.hpp"
#include "penstock/gate/planner.hpp"

namespace penstock::detail {
namespace {

constexpr std::int64_t kLargestBlock = 32768;

/// More tokens than any call has; sizes computed from it stay within 64 bits.
constexpr std::int64_t kAnyTokens = std::int64_t{1} << 30;

}  // namespace

WeightPart part_for(const GateShape& shape, const GateOptions& options, WeightPart given,
                    int ranks) {
  switch (options.strategy) {
    case GateStrategy::Auto:
      if (given != WeightPart::Full) return given;
      return plan_gate_residency(shape, ranks, options.max_resident_bytes);
    case GateStrategy::Replicated: return WeightPart::Full;
    case GateStrategy::KShard: return WeightPart::Columns;
    case GateStrategy::NShard:
    case GateStrategy::WeightGather:
    case GateStrategy::IdenticalRows: return WeightPart::Rows;
  }
  throw Error(ErrorCode::Internal, "GateLinear: not a GateStrategy");
}

std::vector<GateStrategy> candidates_for(GateStrategy strategy, WeightPart resident, int ranks,
                                         const Ways& ways) {
  if (ranks == 1) return {GateStrategy::Replicated};
  if (strategy == GateStrategy::Auto && resident == WeightPart::Full) {
    return {GateStrategy::Replicated};
  }
  if (strategy == GateStrategy::Auto && resident == WeightPart::Columns) {
    strategy = GateStrategy::KShard;
  }
  const bool is_auto = strategy == GateStrategy::Auto;
  const auto wants = [&](GateStrategy candidate) { return is_auto || strategy == candidate; };
  std::vector<GateStrategy> candidates;
  if (strategy == GateStrategy::Replicated) candidates.push_back(strategy);
  if (strategy == GateStrategy::KShard && ways.exchange) candidates.push_back(strategy);
  const bool has_n_shard = wants(GateStrategy::NShard) && ways.exchange;
  if (has_n_shard) candidates.push_back(GateStrategy::NShard);
  if ((wants(GateStrategy::IdenticalRows) || has_n_shard) && ways.identical) {
    candidates.push_back(GateStrategy::IdenticalRows);
  }
  if (wants(GateStrategy::WeightGather) && ways.gather_weight) {
    candidates.push_back(GateStrategy::WeightGather);
  }
  return candidates;
}

std::size_t workspace_of(const GateContext& gate, GateStrategy strategy, std::int64_t tokens) {
  Arena counter;
  const std::int64_t block = std::min(tokens, gate.block_tokens);
  switch (gate.ranks == 1 ? GateStrategy::Replicated : strategy) {
    case GateStrategy::Auto: break;
    case GateStrategy::Replicated: take_replicated(gate, tokens, counter); break;
    case GateStrategy::KShard: take_k_shard(gate, tokens, counter); break;
    case GateStrategy::NShard: take_n_shard(gate, block, counter); break;
    case GateStrategy::WeightGather: take_weight_gather(gate, tokens, counter); break;
    case GateStrategy::IdenticalRows: take_identical_rows(gate, block, counter); break;
  }
  return counter.used();
}

std::size_t workspace_of_any(const GateContext& gate, std::span<const GateStrategy> candidates) {
  std::size_t bytes = 0;
  for (const GateStrategy strategy : candidates) {
    bytes = std::max(bytes, workspace_of(gate, strategy, kAnyTokens));
  }
  return bytes;
}

std::int64_t choose_block(GateContext gate, std::span<const GateStrategy> candidates,
                          std::size_t stream_bytes, std::optional<std::size_t> max_temp_bytes) {
  if (!max_temp_bytes) return default_gate_block(gate.ranks, gate.side != nullptr);
  const auto needed = [&](std::int64_t block) {
    gate.block_tokens = block;
    // Ranks differ by a row or a column; every rank chooses by the one with the most.
    std::size_t most = 0;
    for (int rank = 0; rank < gate.ranks; ++rank) {
      gate.rank = rank;
      most = std::max(most, workspace_of_any(gate, candidates));
    }
    return most + stream_bytes;
  };
  if (needed(1) > *max_temp_bytes) {
    throw Error(ErrorCode::InvalidArgument, "GateLinear: max_temp_bytes is " +
                                                std::to_string(*max_temp_bytes) +
                                                ", needs at least " + std::to_string(needed(1)));
  }
  std::int64_t fits = 1;
  std::int64_t too_large = kLargestBlock + 1;
  while (too_large - fits > 1) {
    const std::int64_t middle = (fits + too_large) / 2;
    (needed(middle) <= *max_temp_bytes ? fits : too_large) = middle;
  }
  return fits;
}

}  // namespace penstock::detail
