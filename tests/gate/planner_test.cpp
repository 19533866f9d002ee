#include "penstock/gate/planner.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "gate/gate_ranks.hpp"

namespace penstock {
namespace {

constexpr GateShape kSmall{.hidden_size = 2816, .output_size = 8192};
constexpr GateShape kLarge{.hidden_size = 6144, .output_size = 16384};
constexpr GateShape kSmallHeads{2816, 32, GatingType::Headwise};
constexpr GateShape kLargeHeads{6144, 64, GatingType::Headwise};

/// Element sizes of a scenario: weight, activations, output on the wire.
struct Widths {
  int weight = 2;
  int activation = 2;
  int wire = 2;
};

GatePlanInput input(GateShape shape, int ranks, std::int64_t tokens, Widths widths = {}) {
  return {.shape = shape,
          .ranks = ranks,
          .tokens = tokens,
          .rates = typical_gate_rates(DeviceKind::Cuda),
          .weight_bytes = widths.weight,
          .activation_bytes = widths.activation,
          .k_shard_wire_bytes = widths.wire,
          .n_shard_wire_bytes = widths.wire};
}

/// The most tokens at which moving the weight does not yet send fewer bytes than `other`.
std::int64_t crossover(GateShape shape, int ranks, GateStrategy other, Widths widths) {
  std::int64_t tokens = 0;
  while (gate_sent_bytes(GateStrategy::WeightGather, input(shape, ranks, tokens + 1, widths)) >=
         gate_sent_bytes(other, input(shape, ranks, tokens + 1, widths))) {
    ++tokens;
  }
  return tokens;
}

struct Crossover {
  GateShape shape;
  int ranks;
  Widths widths;
  std::int64_t over_k_shard;
  std::int64_t over_n_shard;
};

void PrintTo(const Crossover& row, std::ostream* out) {  // NOLINT: GoogleTest's name
  *out << "H" << row.shape.hidden_size << "_G" << row.shape.output_size << "_P" << row.ranks << "_w"
       << row.widths.weight << "a" << row.widths.activation;
}

class GateCrossover : public testing::TestWithParam<Crossover> {};

TEST_P(GateCrossover, IsWhereTheFormulasSay) {
  const auto& [shape, ranks, widths, over_k_shard, over_n_shard] = GetParam();
  // The table rounds to the nearest token; the last token before the crossing is that or one less.
  const auto k_shard = crossover(shape, ranks, GateStrategy::KShard, widths);
  const auto n_shard = crossover(shape, ranks, GateStrategy::NShard, widths);
  EXPECT_THAT(over_k_shard - k_shard, testing::AnyOf(0, 1));
  EXPECT_THAT(over_n_shard - n_shard, testing::AnyOf(0, 1));
}

INSTANTIATE_TEST_SUITE_P(
    Table, GateCrossover,
    testing::Values(
        Crossover{kSmall, 2, {}, 1202, 1669}, Crossover{kSmall, 4, {}, 648, 1186},
        Crossover{kSmall, 8, {}, 338, 751}, Crossover{kLarge, 2, {}, 2587, 3511},
        Crossover{kLarge, 4, {}, 1404, 2458}, Crossover{kLarge, 8, {}, 734, 1536},
        Crossover{kSmall, 2, {1, 2, 2}, 601, 834}, Crossover{kSmall, 4, {1, 2, 2}, 324, 593},
        Crossover{kSmall, 8, {1, 2, 2}, 169, 375}, Crossover{kLarge, 8, {1, 2, 2}, 367, 768},
        Crossover{kSmall, 2, {1, 1, 2}, 648, 1048}, Crossover{kSmall, 4, {1, 1, 2}, 338, 834},
        Crossover{kSmall, 8, {1, 1, 2}, 172, 593}, Crossover{kLarge, 8, {1, 1, 2}, 375, 1229},
        Crossover{kSmallHeads, 8, {}, 29, 4}, Crossover{kLargeHeads, 8, {}, 59, 8},
        Crossover{kSmallHeads, 8, {1, 2, 2}, 15, 2}, Crossover{kLargeHeads, 8, {1, 2, 2}, 29, 4}));

TEST(GateSentBytes, AreTheOnesOfTheSizeTable) {
  const auto mib = [](GateStrategy strategy, GateShape shape, std::int64_t tokens) {
    return static_cast<double>(gate_sent_bytes(strategy, input(shape, 8, tokens))) / 1048576.0;
  };
  EXPECT_NEAR(mib(GateStrategy::KShard, kSmall, 1024), 117, 0.5);
  EXPECT_NEAR(mib(GateStrategy::NShard, kSmall, 1024), 53, 0.5);
  EXPECT_NEAR(mib(GateStrategy::WeightGather, kSmall, 1024), 38.5, 0.1);
  EXPECT_NEAR(mib(GateStrategy::KShard, kLarge, 4096), 938, 0.5);
  EXPECT_NEAR(mib(GateStrategy::NShard, kLarge, 4096), 448, 0.5);
  EXPECT_NEAR(mib(GateStrategy::WeightGather, kLarge, 4096), 168, 0.1);
}

TEST(GateSentBytes, NShardBeatsKShardExactlyWhereTheGateIsWide) {
  for (const int ranks : {2, 3, 8}) {
    for (const std::int64_t g : {90, 100, 110}) {
      const auto in = input({.hidden_size = 100, .output_size = g}, ranks, ranks * 50);
      const auto k = gate_sent_bytes(GateStrategy::KShard, in);
      const auto n = gate_sent_bytes(GateStrategy::NShard, in);
      EXPECT_EQ(n < k, g > 100) << g;
      EXPECT_EQ(n == k, g == 100) << g;
    }
  }
}

TEST(PlanGate, MovesTheWeightForManyTokensAndTheTokensForFew) {
  for (const GateShape& shape : {kSmall, kLarge}) {
    for (const int ranks : {2, 4, 8}) {
      EXPECT_EQ(plan_gate(input(shape, ranks, 16)).distinct, GateStrategy::NShard);
      EXPECT_EQ(plan_gate(input(shape, ranks, 4096)).distinct, GateStrategy::WeightGather);
    }
  }
}

/// Rates of a published size table: 370 GB/s of link, 700 TFLOP/s.
constexpr GateRates kTableRates{370e9, 700e12, 1e18, 0};

/// The fewest tokens for which `is_true` holds, which then holds for all more.
template <typename Condition>
std::int64_t first_tokens(const Condition& is_true) {
  std::int64_t tokens = 1;
  while (!is_true(tokens)) ++tokens;
  return tokens;
}

TEST(PlanGate, HidesAWeightFromTheTokensOnThatTheFormulaGives) {
  // 2-byte weights: T >= F (P - 1) / (P B), for any shape.
  for (const GateShape& shape : {kSmall, kLarge}) {
    for (const auto& [ranks, expected] : {std::pair{2, 946}, {4, 1419}, {8, 1655}}) {
      const std::int64_t found = first_tokens([&, ranks = ranks](std::int64_t tokens) {
        auto in = input(shape, ranks, tokens);
        in.rates = kTableRates;
        const auto costs = plan_gate(in).costs;
        return costs[1].seconds <= costs[0].seconds;  // weight_gather and replicated
      });
      EXPECT_NEAR(static_cast<double>(found), expected, 1.0) << ranks;
    }
  }
}

TEST(PlanGate, SwitchesToTheWeightAtTheCrossover) {
  // With products that take no time only what travels counts: bytes, then the fixed cost as well.
  for (const auto& [seconds, expected] : {std::pair{0.0, 1536.0}, {6e-6, 1497.0}}) {
    const std::int64_t found = first_tokens([&, seconds = seconds](std::int64_t tokens) {
      auto in = input(kLarge, 8, tokens);
      in.rates = {370e9, 1e18, 1e18, seconds};
      in.block_tokens = 4096;
      return plan_gate(in).distinct == GateStrategy::WeightGather;
    });
    EXPECT_NEAR(static_cast<double>(found), expected, 2.0);
  }
}

TEST(PlanGate, OverlapHidesTheShorterOfProductAndExchangeButForOneBlock) {
  const auto k_shard = [](std::int64_t tokens, bool overlaps_blocks) {
    auto in = input(kSmall, 8, tokens);
    in.block_tokens = 256;
    in.overlaps_blocks = overlaps_blocks;
    return plan_gate(in).costs[3];
  };
  ASSERT_EQ(k_shard(1, true).strategy, GateStrategy::KShard);
  for (const std::int64_t tokens : {0, 1, 256}) {
    EXPECT_EQ(k_shard(tokens, true).seconds, k_shard(tokens, false).seconds);
    EXPECT_EQ(k_shard(tokens, true).temp_bytes, k_shard(tokens, false).temp_bytes);
  }
  EXPECT_LT(k_shard(4096, true).seconds, k_shard(4096, false).seconds);
  EXPECT_GT(k_shard(4096, true).seconds, k_shard(4096, false).seconds / 2);
  EXPECT_GT(k_shard(4096, true).temp_bytes, k_shard(4096, false).temp_bytes);
}

TEST(PlanGate, TakesTheBlocksThatGatesTakeUnlessItIsToldOthers) {
  for (const int ranks : {2, 4, 8, 2000}) {
    auto in = input(kSmall, ranks, 4096);
    in.overlaps_blocks = true;
    const auto planned = plan_gate(in).costs;
    for (const auto& cost : planned) {
      const bool is_k_shard = cost.strategy == GateStrategy::KShard;
      in.block_tokens = is_k_shard ? std::max(1, 1536 / ranks) : 384;
      const auto expected = plan_gate(in).costs;
      const auto same = std::ranges::find(expected, cost.strategy, &GateCost::strategy);
      EXPECT_EQ(cost.temp_bytes, same->temp_bytes) << to_string(cost.strategy) << " " << ranks;
      EXPECT_EQ(cost.seconds, same->seconds) << to_string(cost.strategy) << " " << ranks;
    }
  }
}

TEST(PlanGate, AWindowBeforeTheGateFavoursTheWeight) {
  auto in = input(kLarge, 8, 256);
  EXPECT_EQ(plan_gate(in).distinct, GateStrategy::NShard);
  in.window_seconds = 500e-6;
  EXPECT_EQ(plan_gate(in).distinct, GateStrategy::WeightGather);
}

TEST(PlanGate, GathersResultsOfIdenticalRows) {
  for (const std::int64_t tokens : {1, 64, 256}) {
    auto in = input(kLarge, 8, 0);
    in.identical_tokens = tokens;
    EXPECT_EQ(plan_gate(in).identical, GateStrategy::IdenticalRows) << tokens;
  }
}

TEST(PlanGate, KeepsWithinTheResidentPartAndTheMemoryLimit) {
  auto in = input(kLarge, 8, 4096);
  in.max_temp_bytes = std::size_t{256} << 20;
  EXPECT_EQ(plan_gate(in).distinct, GateStrategy::NShard);
  in.max_temp_bytes = 1;
  EXPECT_EQ(error_of([&] { plan_gate(in); }).first, ErrorCode::InvalidArgument);
  in.max_temp_bytes.reset();
  in.resident = WeightPart::Columns;
  EXPECT_EQ(plan_gate(in).distinct, GateStrategy::KShard);
  in.resident = WeightPart::Full;
  EXPECT_EQ(plan_gate(in).distinct, GateStrategy::Replicated);
}

TEST(PlanGate, RefusesSizesThatMeanNothing) {
  for (auto in : {input({0, 8, {}}, 2, 1), input(kSmall, 0, 1), input(kSmall, 2, -1)}) {
    EXPECT_EQ(error_of([&] { plan_gate(in); }).first, ErrorCode::InvalidArgument);
  }
}

TEST(PlanGate, RefusesSizesWhoseBytesNobodyCanCount) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  auto identical = input(kSmall, 8, 1);
  identical.identical_tokens = kMost;
  for (const auto& in :
       {input(kSmall, 8, kMost), identical, input(kSmall, std::numeric_limits<int>::max(), 1024),
        input({kMost / 2, 8, {}}, 2, 1)}) {
    const auto [code, message] = error_of([&] { plan_gate(in); });
    EXPECT_EQ(code, ErrorCode::InvalidArgument);
    EXPECT_NE(message.find("more bytes than 64 bits count"), std::string::npos) << message;
  }
  for (const auto& cost : plan_gate(input(kLarge, 1024, std::int64_t{1} << 20)).costs) {
    EXPECT_GE(cost.sent_bytes, 0);
    EXPECT_GE(cost.temp_bytes, 0);
  }
}

TEST(PlanGateResidency, HoldsTinyWeightsWhole) {
  EXPECT_EQ(plan_gate_residency(kSmallHeads, 8, {}), WeightPart::Full);
  EXPECT_EQ(plan_gate_residency(kLargeHeads, 8, {}), WeightPart::Full);
  EXPECT_EQ(plan_gate_residency(kSmall, 8, {}), WeightPart::Rows);
  EXPECT_EQ(plan_gate_residency(kSmall, 8, std::size_t{64} << 20), WeightPart::Full);
  EXPECT_EQ(plan_gate_residency(kSmall, 1, {}), WeightPart::Full);
}

TEST(PlanGate, PrintsBytesAndTimeOfEveryStrategy) {
  const auto text = to_string(plan_gate(input(kSmall, 8, 1024)));
  for (const char* word : {"replicated", "k_shard", "n_shard", "weight_gather", "identical_rows",
                           "sent MiB", "temp MiB", "us", "chosen", "38.50"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace penstock
