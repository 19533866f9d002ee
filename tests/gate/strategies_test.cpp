#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "gate/gate_ranks.hpp"

namespace penstock {
namespace {

using Counts = std::vector<std::int64_t>;

constexpr GateShape kOdd{.hidden_size = 52, .output_size = 83};
constexpr GateShape kHeads{.hidden_size = 44, .output_size = 6, .gating = GatingType::Headwise};

const std::vector<GateStrategy> kRowStrategies{GateStrategy::Replicated, GateStrategy::NShard,
                                               GateStrategy::WeightGather, GateStrategy::Auto};

/// Every element of the same size on average as the exact one.
void expect_near(const GateProblem& problem, const std::vector<std::vector<BF16>>& found,
                 double relative) {
  const auto expected = run_alone(problem);
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    double difference = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < found[rank].size(); ++i) {
      const double want = to_float(expected[rank][i]);
      difference += std::pow(to_float(found[rank][i]) - want, 2);
      size += want * want;
    }
    EXPECT_LE(std::sqrt(difference), relative * std::sqrt(size)) << "rank " << rank;
  }
}

Counts equal_counts(int ranks, std::int64_t tokens) {
  return Counts(static_cast<std::size_t>(ranks), tokens);
}

class GateStrategies : public testing::TestWithParam<std::tuple<int, std::int64_t>> {};

TEST_P(GateStrategies, RowShardsHaveTheBitsOfTheWhole) {
  const auto [ranks, tokens] = GetParam();
  const GateProblem problem = make_problem(kOdd, equal_counts(ranks, tokens));
  const auto expected = run_alone(problem);
  for (const GateStrategy strategy : kRowStrategies) {
    EXPECT_EQ(run_ranks(problem, with(strategy)), expected) << to_string(strategy);
  }
}

TEST_P(GateStrategies, IdenticalRowsHaveTheBitsOfTheWhole) {
  const auto [ranks, tokens] = GetParam();
  for (const bool is_headwise : {false, true}) {
    GateProblem problem =
        make_problem(is_headwise ? kHeads : kOdd, equal_counts(ranks, tokens), is_headwise ? 5 : 1);
    make_identical(problem);
    const auto expected = run_alone(problem);
    EXPECT_EQ(run_ranks(problem, with(GateStrategy::IdenticalRows)), expected);
    for (const GateStrategy strategy : {GateStrategy::Auto, GateStrategy::NShard}) {
      const auto all = [](GateCall& call, int) { call.identical_rows = {0, call.tokens}; };
      EXPECT_EQ(run_ranks(problem, with(strategy), all), expected) << to_string(strategy);
    }
  }
}

TEST_P(GateStrategies, HeadwiseRowShardsHaveTheBitsOfTheWhole) {
  const auto [ranks, tokens] = GetParam();
  const GateProblem problem = make_problem(kHeads, equal_counts(ranks, tokens), 16);
  const auto expected = run_alone(problem);
  for (const GateStrategy strategy : kRowStrategies) {
    EXPECT_EQ(run_ranks(problem, with(strategy)), expected) << to_string(strategy);
  }
}

TEST_P(GateStrategies, ColumnShardsAreClose) {
  const auto [ranks, tokens] = GetParam();
  for (const DType sums : {DType::BF16, DType::F32}) {
    GateOptions options = with(GateStrategy::KShard);
    options.k_shard_sums = sums;
    const GateProblem problem = make_problem(kOdd, equal_counts(ranks, tokens));
    expect_near(problem, run_ranks(problem, options), sums == DType::F32 ? 1e-3 : 4e-3);
    const GateProblem heads = make_problem(kHeads, equal_counts(ranks, tokens), 16);
    expect_near(heads, run_ranks(heads, options), sums == DType::F32 ? 1e-3 : 4e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, GateStrategies,
                         testing::Combine(testing::Values(1, 2, 3, 4, 8),
                                          testing::Values<std::int64_t>(0, 1, 7, 64)),
                         [](const auto& parameter) {
                           return "P" + std::to_string(std::get<0>(parameter.param)) + "T" +
                                  std::to_string(std::get<1>(parameter.param));
                         });

TEST(GateStrategies257Tokens, AgreeOverEightRanks) {
  const GateProblem problem = make_problem(kOdd, equal_counts(8, 257));
  const auto expected = run_alone(problem);
  for (const GateStrategy strategy : kRowStrategies) {
    EXPECT_EQ(run_ranks(problem, with(strategy)), expected) << to_string(strategy);
  }
  expect_near(problem, run_ranks(problem, with(GateStrategy::KShard)), 4e-3);
}

TEST(GateRaggedTokens, EveryMixOfSmallCountsOnThreeRanks) {
  const Counts choices{0, 1, 3, 5};
  for (const std::int64_t a : choices) {
    for (const std::int64_t b : choices) {
      for (const std::int64_t c : choices) {
        const GateProblem problem = make_problem(kOdd, {a, b, c});
        const auto expected = run_alone(problem);
        for (const GateStrategy strategy : {GateStrategy::NShard, GateStrategy::WeightGather}) {
          ASSERT_EQ(run_ranks(problem, with(strategy)), expected)
              << to_string(strategy) << " " << a << " " << b << " " << c;
        }
        expect_near(problem, run_ranks(problem, with(GateStrategy::KShard)), 5e-3);
      }
    }
  }
}

TEST(GateRaggedTokens, BlocksCutAnyMixAlike) {
  const GateProblem problem = make_problem(kOdd, {70, 0, 13, 1, 0, 200, 64, 9});
  const auto expected = run_alone(problem);
  for (const std::size_t limit : {40'000U, 200'000U, 100'000'000U}) {
    for (const GateStrategy strategy : {GateStrategy::NShard, GateStrategy::KShard}) {
      GateOptions options = with(strategy);
      options.max_temp_bytes = limit;
      options.k_shard_sums = DType::F32;
      const auto found = run_ranks(problem, options);
      if (strategy == GateStrategy::NShard) {
        EXPECT_EQ(found, expected) << limit;
      } else {
        expect_near(problem, found, 1e-3);
      }
    }
  }
}

TEST(GateRaggedTokens, CountsAreAskedForWhenNotGiven) {
  const GateProblem problem = make_problem(kOdd, {3, 0, 11});
  const auto expected = run_alone(problem);
  const auto drop = [](GateCall& call, int) { call.token_counts = {}; };
  for (const GateStrategy strategy : kRowStrategies) {
    EXPECT_EQ(run_ranks(problem, with(strategy), drop), expected) << to_string(strategy);
  }
}

TEST(GateRaggedTokens, PaddingRowsStayAmongThemselves) {
  // Rows that nobody needs may hold anything, not-a-number included.
  GateProblem problem = make_problem(kOdd, {6, 6});
  const auto expected = run_alone(problem);
  const auto width = static_cast<std::size_t>(kOdd.hidden_size);
  for (std::size_t i = 4 * width; i < 6 * width; ++i) problem.x[1][i] = kBF16NaN;
  for (const GateStrategy strategy : kRowStrategies) {
    const auto found = run_ranks(problem, with(strategy));
    EXPECT_EQ(found[0], expected[0]);
    EXPECT_TRUE(std::equal(found[1].begin(), found[1].begin() + 4 * problem.attn_width,
                           expected[1].begin()));
    EXPECT_EQ(found[1].back(), kBF16NaN);
  }
}

TEST(GateMixedRows, IdenticalRowsInTheMiddleOfRaggedOnes) {
  // Rank r has its own number of rows before and after the three that all ranks have.
  const Counts before{4, 0, 9};
  const Counts after{2, 5, 0};
  GateProblem problem = make_problem(kOdd, {9, 8, 12});
  const auto h = static_cast<std::size_t>(kOdd.hidden_size);
  const auto g = static_cast<std::size_t>(kOdd.output_size);
  for (std::size_t rank = 1; rank < 3; ++rank) {
    const auto to = static_cast<std::size_t>(before[rank]);
    const auto from = static_cast<std::size_t>(before[0]);
    std::copy_n(problem.x[0].begin() + static_cast<std::ptrdiff_t>(from * h), 3 * h,
                problem.x[rank].begin() + static_cast<std::ptrdiff_t>(to * h));
    std::copy_n(problem.attn_out[0].begin() + static_cast<std::ptrdiff_t>(from * g), 3 * g,
                problem.attn_out[rank].begin() + static_cast<std::ptrdiff_t>(to * g));
  }
  const auto expected = run_alone(problem);
  const auto edit = [&](GateCall& call, int rank) {
    const std::int64_t begin = before[static_cast<std::size_t>(rank)];
    call.identical_rows = {begin, begin + 3};
  };
  for (GateOptions options : {with(GateStrategy::Auto), with(GateStrategy::NShard)}) {
    for (const bool is_checked : {false, true}) {
      options.check_calls = is_checked;
      EXPECT_EQ(run_ranks(problem, options, edit), expected) << to_string(options.strategy);
    }
  }
}

TEST(GateInPlace, OutMayBeTheAttentionOutput) {
  const GateProblem problem = make_problem(kOdd, {5, 3});
  const auto expected = run_alone(problem);
  for (const GateStrategy strategy : kRowStrategies) {
    auto buffers = problem.attn_out;
    run_ranks(problem, with(strategy), [&](GateCall& call, int rank) {
      call.attn_out = buffers[static_cast<std::size_t>(rank)];
      call.out = buffers[static_cast<std::size_t>(rank)];
    });
    EXPECT_EQ(buffers, expected) << to_string(strategy);
  }
}

TEST(GateParts, RowsAndColumnsMayBeBroughtByTheRanks) {
  const GateProblem problem = make_problem(kOdd, {5, 3, 6});
  const auto expected = run_alone(problem);
  run_thread_group(3, [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    const IndexRange rows = even_share(kOdd.output_size, 3, comm.rank());
    const auto slice = std::span(problem.weight)
                           .subspan(static_cast<std::size_t>(rows.begin * kOdd.hidden_size),
                                    static_cast<std::size_t>(rows.size() * kOdd.hidden_size));
    for (const GateStrategy strategy : {GateStrategy::NShard, GateStrategy::WeightGather}) {
      GateLinear gate(kOdd, slice, WeightPart::Rows, &comm, with(strategy));
      std::vector<BF16> out(problem.attn_out[r].size());
      GateCall call = call_of(problem, comm.rank(), out);
      gate.forward(call);
      EXPECT_EQ(out, expected[r]) << to_string(strategy);
    }
    const IndexRange columns = even_share(kOdd.hidden_size, 3, comm.rank());
    std::vector<BF16> cut;
    for (std::int64_t row = 0; row < kOdd.output_size; ++row) {
      const auto at = problem.weight.begin() + row * kOdd.hidden_size;
      cut.insert(cut.end(), at + columns.begin, at + columns.end);
    }
    GateLinear whole(kOdd, problem.weight, WeightPart::Full, &comm, with(GateStrategy::KShard));
    GateLinear parts(kOdd, cut, WeightPart::Columns, &comm, with(GateStrategy::Auto));
    EXPECT_EQ(parts.resident_part(), WeightPart::Columns);
    std::vector<BF16> first(problem.attn_out[r].size());
    std::vector<BF16> second(first.size());
    whole.forward(call_of(problem, comm.rank(), first));
    parts.forward(call_of(problem, comm.rank(), second));
    EXPECT_EQ(first, second);
  });
}

TEST(GateShapes, MoreRanksThanRowsOrColumns) {
  constexpr GateShape tiny{.hidden_size = 3, .output_size = 2};
  const GateProblem problem = make_problem(tiny, {4, 1, 0, 2, 3});
  const auto expected = run_alone(problem);
  for (const GateStrategy strategy : kRowStrategies) {
    EXPECT_EQ(run_ranks(problem, with(strategy)), expected) << to_string(strategy);
  }
  expect_near(problem, run_ranks(problem, with(GateStrategy::KShard)), 2e-2);
}

TEST(GateShapes, SquareWeightsAreNeverTakenForTheirTransposes) {
  // Where G = H / P a transposed slice has as many elements as a right one.
  constexpr GateShape square{.hidden_size = 64, .output_size = 32};
  const GateProblem problem = make_problem(square, {3, 3});
  expect_near(problem, run_ranks(problem, with(GateStrategy::KShard)), 4e-3);
  const GateProblem equal = make_problem({.hidden_size = 32, .output_size = 32}, {3, 3});
  EXPECT_EQ(run_ranks(equal, with(GateStrategy::NShard)), run_alone(equal));
}

TEST(GateAgainstTheDefinition, BothGatingTypes) {
  for (const bool is_headwise : {false, true}) {
    const std::int64_t width = is_headwise ? 16 : 1;
    const GateProblem problem = make_problem(is_headwise ? kHeads : kOdd, {9}, width);
    const auto z = oracle::project(problem.x[0], problem.weight, 9, problem.shape.output_size,
                                   problem.shape.hidden_size);
    const auto exact = oracle::gate(z, problem.attn_out[0], width);
    const auto out = run_alone(problem)[0];
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_LE(oracle::ulps(out[i], exact[i]), 1.0);
  }
}

TEST(GateAgainstTheDefinition, SaturatedProjectionsStayFinite) {
  GateProblem problem = make_problem({.hidden_size = 1, .output_size = 6}, {1});
  problem.x[0] = {to_bf16(1.0F)};
  problem.weight = {to_bf16(-200.0F), to_bf16(-100.0F), to_bf16(-87.0F),
                    to_bf16(0.0F),    to_bf16(87.0F),   to_bf16(3e38F)};
  problem.attn_out[0].assign(6, to_bf16(2.0F));
  const auto exact =
      oracle::gate(oracle::project(problem.x[0], problem.weight, 1, 6, 1), problem.attn_out[0], 1);
  const auto out = run_alone(problem)[0];
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_LE(oracle::ulps(out[i], exact[i]), 1.0) << i;
}

}  // namespace
}  // namespace penstock
