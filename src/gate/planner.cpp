#include "penstock/gate/planner.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

/// Up to here a weight is cheaper to hold than to think about: headwise gates are this small.
constexpr std::int64_t kTinyWeightBytes = std::int64_t{1} << 20;

/// In order of preference where costs tie.
constexpr std::array kAllStrategies{GateStrategy::Replicated, GateStrategy::WeightGather,
                                    GateStrategy::NShard, GateStrategy::KShard,
                                    GateStrategy::IdenticalRows};

/// Large enough for full products over 8 ranks, small enough that the partial sums of the largest
/// known gate stay below 128 MiB there.
constexpr std::int64_t kDefaultBlock = 384;

/// The same for all ranks' tokens together, where two blocks are on their way. A block's product
/// takes about as long as its exchange from here on.
constexpr std::int64_t kDefaultOverlappedRows = 1536;

std::int64_t share(std::int64_t count, int ranks) {
  return (count + ranks - 1) / ranks;
}

WeightPart part_of(GateStrategy strategy) {
  switch (strategy) {
    case GateStrategy::Replicated: return WeightPart::Full;
    case GateStrategy::KShard: return WeightPart::Columns;
    case GateStrategy::NShard:
    case GateStrategy::WeightGather:
    case GateStrategy::IdenticalRows: return WeightPart::Rows;
    case GateStrategy::Auto: break;
  }
  throw Error(ErrorCode::Internal, "plan_gate: auto is not a strategy that runs");
}

std::int64_t resident_bytes(GateStrategy strategy, const GatePlanInput& in) {
  const std::int64_t h = in.shape.hidden_size;
  const std::int64_t g = in.shape.output_size;
  switch (part_of(strategy)) {
    case WeightPart::Full: return in.weight_bytes * g * h;
    case WeightPart::Rows: return in.weight_bytes * share(g, in.ranks) * h;
    case WeightPart::Columns: return in.weight_bytes * g * share(h, in.ranks);
  }
  return 0;
}

std::int64_t block_of(GateStrategy strategy, const GatePlanInput& in) {
  const bool overlaps_blocks = strategy == GateStrategy::KShard && in.overlaps_blocks;
  return in.block_tokens.value_or(default_gate_block(in.ranks, overlaps_blocks));
}

std::int64_t temp_bytes(GateStrategy strategy, const GatePlanInput& in) {
  if (in.ranks == 1) return 0;
  const std::int64_t h = in.shape.hidden_size;
  const std::int64_t g = in.shape.output_size;
  const std::int64_t p = in.ranks;
  const std::int64_t block = block_of(strategy, in);
  const std::int64_t b = std::min(in.tokens, block);
  switch (strategy) {
    case GateStrategy::Auto:
    case GateStrategy::Replicated: return 0;
    case GateStrategy::KShard: {
      const std::int64_t sets = in.overlaps_blocks && in.tokens > block ? 2 : 1;
      return b * (in.activation_bytes * (h + sets * p * share(h, in.ranks)) +
                  in.k_shard_wire_bytes * (sets * p + 1) * g);
    }
    case GateStrategy::NShard:
      return b *
             (in.activation_bytes * p * h + in.n_shard_wire_bytes * (p * share(g, in.ranks) + g));
    case GateStrategy::WeightGather:
      return in.peers_are_readable ? 0 : std::int64_t{2} * in.weight_bytes * (g - g / p) * h;
    case GateStrategy::IdenticalRows:
      return std::min(in.identical_tokens, block) * in.activation_bytes * p * share(g, in.ranks);
  }
  return 0;
}

/// Seconds of a product of `tokens` tokens with `rows` rows of the weight: bound by arithmetic or
/// by reading the weight.
double product_seconds(const GatePlanInput& in, std::int64_t tokens, std::int64_t rows) {
  if (tokens == 0) return 0;
  const double elements = static_cast<double>(in.shape.hidden_size) * static_cast<double>(rows);
  return std::max(2.0 * elements * static_cast<double>(tokens) / in.rates.flops_per_second,
                  elements * in.weight_bytes / in.rates.memory_bytes_per_second);
}

/// A strategy that multiplies for `whole` seconds and exchanges for `wire`, block by block.
double blockwise_seconds(GateStrategy strategy, const GatePlanInput& in, double whole,
                         double wire) {
  if (in.tokens == 0) return 0;
  const std::int64_t block = block_of(strategy, in);
  const std::int64_t num_blocks = (in.tokens + block - 1) / block;
  const auto blocks = static_cast<double>(num_blocks);
  const double exchange = wire + 2.0 * blocks * in.rates.collective_seconds;
  if (strategy != GateStrategy::KShard || !in.overlaps_blocks) return whole + exchange;
  // The first block's exchange or the last one's product has nothing beside it.
  return std::max(whole, exchange) + std::min(whole, exchange) / blocks;
}

double seconds(GateStrategy strategy, const GatePlanInput& in) {
  const double wire =
      static_cast<double>(gate_sent_bytes(strategy, in)) / in.rates.link_bytes_per_second;
  const double whole = product_seconds(in, in.tokens, in.shape.output_size);
  switch (strategy) {
    case GateStrategy::Auto:
    case GateStrategy::Replicated: return whole;
    case GateStrategy::KShard:
    case GateStrategy::NShard: return blockwise_seconds(strategy, in, whole, wire);
    // In a chain of layers the weight travels under the layer before.
    case GateStrategy::WeightGather:
      return in.tokens == 0 ? 0 : std::max(whole, wire - in.window_seconds);
    case GateStrategy::IdenticalRows:
      return product_seconds(in, in.identical_tokens, share(in.shape.output_size, in.ranks)) +
             wire + in.rates.collective_seconds;
  }
  return 0;
}

GateCost cost_of(GateStrategy strategy, const GatePlanInput& in) {
  GateCost cost{.strategy = strategy,
                .resident_bytes = resident_bytes(strategy, in),
                .sent_bytes = gate_sent_bytes(strategy, in),
                .temp_bytes = temp_bytes(strategy, in),
                .seconds = seconds(strategy, in)};
  const bool has_part =
      in.ranks == 1 ? strategy == GateStrategy::Replicated : in.resident == part_of(strategy);
  const bool exchanges = strategy == GateStrategy::KShard || strategy == GateStrategy::NShard;
  const bool may_run = (strategy != GateStrategy::WeightGather || in.may_gather_weight) &&
                       (!exchanges || in.may_exchange_tokens);
  cost.is_possible =
      has_part && may_run &&
      (!in.max_temp_bytes || cost.temp_bytes <= static_cast<std::int64_t>(*in.max_temp_bytes));
  return cost;
}

GateStrategy fastest(const std::vector<GateCost>& costs) {
  const GateCost* best = nullptr;
  for (const GateCost& cost : costs) {
    if (cost.is_possible && (best == nullptr || cost.seconds < best->seconds)) best = &cost;
  }
  expects(best != nullptr, "plan_gate: no strategy fits the resident weight and max_temp_bytes");
  return best->strategy;
}

/// No figure of a plan has more bytes than this.
double most_bytes(const GatePlanInput& in) {
  const auto h = static_cast<double>(in.shape.hidden_size);
  const auto g = static_cast<double>(in.shape.output_size);
  const double p = in.ranks;
  const auto tokens = static_cast<double>(std::max(in.tokens, in.identical_tokens));
  const double of_a_token =
      in.activation_bytes * h + (in.k_shard_wire_bytes + in.n_shard_wire_bytes) * g;
  return 2.0 * p * (in.weight_bytes * h * g + tokens * p * of_a_token);
}

void check(const GatePlanInput& in) {
  expects(in.shape.hidden_size >= 1 && in.shape.output_size >= 1,
          "plan_gate: a size of the gate is below 1");
  expects(in.ranks >= 1, "plan_gate: ranks is below 1");
  expects(in.tokens >= 0 && in.identical_tokens >= 0, "plan_gate: tokens is negative");
  expects(in.block_tokens.value_or(1) >= 1, "plan_gate: block_tokens is below 1");
  constexpr double kMostBytes = 4e18;
  expects(most_bytes(in) < kMostBytes,
          fmt::format("plan_gate: {} tokens of a rank, {} ranks and a gate of {} by {} are more "
                      "bytes than 64 bits count",
                      std::max(in.tokens, in.identical_tokens), in.ranks, in.shape.hidden_size,
                      in.shape.output_size));
  expects(in.rates.link_bytes_per_second > 0 && in.rates.flops_per_second > 0 &&
              in.rates.memory_bytes_per_second > 0,
          "plan_gate: a rate is not above 0");
}

std::string table_of(const std::vector<GateCost>& costs, GateStrategy chosen) {
  std::string text = fmt::format("{:<16}{:>14}{:>14}{:>14}{:>12}\n", "strategy", "resident MiB",
                                 "sent MiB", "temp MiB", "us");
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / 1048576.0; };
  for (const GateCost& cost : costs) {
    fmt::format_to(std::back_inserter(text), "{:<16}{:>14.2f}{:>14.2f}{:>14.2f}{:>12.1f}{}\n",
                   to_string(cost.strategy), mib(cost.resident_bytes), mib(cost.sent_bytes),
                   mib(cost.temp_bytes), cost.seconds * 1e6,
                   cost.strategy == chosen ? "  chosen" : (cost.is_possible ? "" : "  -"));
  }
  return text;
}

}  // namespace

GateRates typical_gate_rates(DeviceKind device) {
  switch (device) {
    // What H200 GPUs reach at best. What two of them gave in one measurement:
    // docs/measurements/2026-11-30-h200.md, 353 GB/s, 670 TFLOP/s, 3.1 TB/s, 13 us.
    case DeviceKind::Cuda: return {384e9, 700e12, 4.3e12, 12e-6};
    case DeviceKind::Cpu: return {8e9, 150e9, 15e9, 30e-6};
  }
  throw Error(ErrorCode::Internal, "typical_gate_rates: not a DeviceKind");
}

std::int64_t default_gate_block(int ranks, bool overlaps_blocks) {
  expects(ranks >= 1, "default_gate_block: ranks is below 1");
  if (!overlaps_blocks) return kDefaultBlock;
  return std::max<std::int64_t>(1, kDefaultOverlappedRows / ranks);
}

std::int64_t gate_sent_bytes(GateStrategy strategy, const GatePlanInput& in) {
  const std::int64_t h = in.shape.hidden_size;
  const std::int64_t g = in.shape.output_size;
  const std::int64_t p = in.ranks;
  // Multiplied before divided, so that a share is exact where P divides.
  switch (strategy) {
    case GateStrategy::Auto:
    case GateStrategy::Replicated: return 0;
    case GateStrategy::KShard:
      return in.tokens * (p - 1) * (in.activation_bytes * h + in.k_shard_wire_bytes * g * p) / p;
    case GateStrategy::NShard:
      return in.tokens * (p - 1) * (in.activation_bytes * h * p + in.n_shard_wire_bytes * g) / p;
    case GateStrategy::WeightGather:
      return in.peers_are_readable ? 0 : in.weight_bytes * g * h * (p - 1) / p;
    case GateStrategy::IdenticalRows:
      return in.identical_tokens * (p - 1) * in.activation_bytes * g / p;
  }
  return 0;
}

GatePlan plan_gate(const GatePlanInput& input) {
  check(input);
  GatePlan plan;
  GatePlanInput identical = input;
  identical.tokens = input.identical_tokens;  // what the other strategies would have to take
  for (const GateStrategy strategy : kAllStrategies) {
    if (strategy != GateStrategy::IdenticalRows) plan.costs.push_back(cost_of(strategy, input));
    plan.identical_costs.push_back(cost_of(strategy, identical));
  }
  plan.distinct = fastest(plan.costs);
  plan.identical = fastest(plan.identical_costs);
  return plan;
}

WeightPart plan_gate_residency(const GateShape& shape, int ranks,
                               std::optional<std::size_t> max_resident_bytes) {
  const std::int64_t bytes = shape.hidden_size * shape.output_size * std::int64_t{sizeof(BF16)};
  const auto limit = static_cast<std::int64_t>(max_resident_bytes.value_or(0));
  const bool is_small = bytes <= kTinyWeightBytes || bytes <= limit;
  return ranks == 1 || is_small ? WeightPart::Full : WeightPart::Rows;
}

std::string to_string(const GatePlan& plan) {
  return "distinct tokens\n" + table_of(plan.costs, plan.distinct) + "identical tokens\n" +
         table_of(plan.identical_costs, plan.identical);
}

}  // namespace penstock
