// The peak memory of k_shard at a released size: run when PENSTOCK_FULL_SIZES=1 asks for it.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "gate/gate_ranks.hpp"

namespace penstock {
namespace {

bool are_wanted() {
  const char* value = std::getenv("PENSTOCK_FULL_SIZES");
  return value != nullptr && std::string(value) == "1";
}

/// Relative to the size of what is expected, as a root mean square.
double distance(std::span<const BF16> found, std::span<const BF16> expected) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += std::pow(to_float(found[i]) - to_float(expected[i]), 2);
    size += std::pow(to_float(expected[i]), 2);
  }
  return std::sqrt(difference / size);
}

TEST(GateFullSize, KShardOfThirtyTwoThousandTokensTakesSixtyFourMebibytes) {
  if (!are_wanted()) {
    GTEST_SKIP() << "PENSTOCK_FULL_SIZES is not 1: 12 TFLOP and 6 GiB of memory";
  }
  constexpr GateShape kFullShape{.hidden_size = 2816, .output_size = 8192};
  constexpr std::int64_t kTokens = 32768;
  constexpr std::size_t kLimit = std::size_t{64} << 20;
  constexpr int kRanks = 8;
  // All ranks have the same tokens, so that one set of inputs serves them.
  const GateProblem problem = make_problem(kFullShape, {kTokens});
  constexpr std::int64_t kSampled = 64;
  GateProblem sample = problem;
  sample.tokens = {kSampled};
  sample.x[0].resize(static_cast<std::size_t>(kSampled * kFullShape.hidden_size));
  sample.attn_out[0].resize(static_cast<std::size_t>(kSampled * kFullShape.output_size));
  const auto expected = run_alone(sample);
  GateOptions options;
  options.strategy = GateStrategy::KShard;
  options.max_temp_bytes = kLimit;
  run_thread_group(kRanks, [&](Communicator& comm) {
    GateLinear gate(kFullShape, problem.weight, WeightPart::Full, &comm, options);
    std::vector<BF16> out(problem.attn_out[0].size());
    GateCall call = call_of(problem, 0, out);
    const std::vector<std::int64_t> counts(kRanks, kTokens);
    call.token_counts = counts;
    gate.forward(call);
    EXPECT_LE(gate.peak_workspace_bytes(), kLimit);
    EXPECT_LE(distance(std::span(out).first(expected[0].size()), expected[0]), 4e-3);
    if (comm.rank() == 0) {
      std::printf("blocks of %lld tokens, peak workspace %zu bytes of %zu\n",
                  static_cast<long long>(gate.block_tokens()), gate.peak_workspace_bytes(), kLimit);
    }
  });
}

}  // namespace
}  // namespace penstock
