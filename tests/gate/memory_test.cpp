#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "penstock/checkpoint/synthetic_model.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

constexpr GateShape kMeasuredShape{.hidden_size = 40, .output_size = 83};

TEST(GateWorkspace, IsExactForEveryStrategyAndSize) {
  for (const GateStrategy strategy :
       {GateStrategy::Replicated, GateStrategy::KShard, GateStrategy::NShard,
        GateStrategy::WeightGather, GateStrategy::IdenticalRows}) {
    for (const std::int64_t tokens : {0, 1, 7, 100, 600}) {
      GateProblem problem = make_problem(kMeasuredShape, {tokens, tokens, tokens});
      make_identical(problem);
      run_thread_group(3, [&](Communicator& comm) {
        GateLinear gate(kMeasuredShape, problem.weight, WeightPart::Full, &comm, with(strategy));
        std::vector<BF16> out(problem.attn_out[0].size());
        gate.forward(call_of(problem, comm.rank(), out));
        const bool runs = tokens > 0;  // an exchange of nothing needs nothing
        EXPECT_EQ(gate.peak_workspace_bytes(), runs ? gate.workspace_bytes(tokens, strategy) : 0)
            << to_string(strategy) << " " << tokens;
      });
    }
  }
}

TEST(GateWorkspace, GrowsWithTokensUpToABlock) {
  run_thread_group(2, [](Communicator& comm) {
    const auto weight =
        oracle::normal_bf16(kMeasuredShape.hidden_size * kMeasuredShape.output_size, 1.0, 1);
    for (const GateStrategy strategy : {GateStrategy::KShard, GateStrategy::NShard}) {
      const GateLinear gate(kMeasuredShape, weight, WeightPart::Full, &comm, with(strategy));
      std::size_t before = 0;
      for (const std::int64_t tokens : {1, 2, 64, 511, 512}) {
        const std::size_t bytes = gate.workspace_bytes(tokens, strategy);
        EXPECT_GE(bytes, before);
        before = bytes;
      }
      EXPECT_EQ(gate.workspace_bytes(100'000, strategy), before);
    }
  });
}

TEST(GateWorkspace, StaysWithinTheLimitAndUsesIt) {
  for (const GateStrategy strategy : {GateStrategy::KShard, GateStrategy::NShard}) {
    for (const std::size_t limit : {100'000U, 500'000U, 3'000'000U}) {
      const GateProblem problem = make_problem(kMeasuredShape, {900, 20});
      run_thread_group(2, [&](Communicator& comm) {
        GateOptions options = with(strategy);
        options.max_temp_bytes = limit;
        GateLinear gate(kMeasuredShape, problem.weight, WeightPart::Full, &comm, options);
        std::vector<BF16> out(problem.attn_out[static_cast<std::size_t>(comm.rank())].size());
        GateCall call = call_of(problem, comm.rank(), out);
        call.token_counts = problem.tokens;
        gate.forward(call);
        EXPECT_LE(gate.peak_workspace_bytes(), limit);
        if (gate.block_tokens() < 900) {
          EXPECT_GT(gate.peak_workspace_bytes() * 10, limit * 8);
        }
      });
    }
  }
}

TEST(GateWorkspace, MayBelongToTheCaller) {
  const GateProblem problem = make_problem(kMeasuredShape, {20, 20});
  const auto expected = run_alone(problem);
  run_thread_group(2, [&](Communicator& comm) {
    GateOptions options = with(GateStrategy::NShard);
    std::vector<std::byte> memory(4'000'000, std::byte{0xAA});
    options.workspace = memory;
    GateLinear gate(kMeasuredShape, problem.weight, WeightPart::Full, &comm, options);
    const auto r = static_cast<std::size_t>(comm.rank());
    std::vector<BF16> out(problem.attn_out[r].size());
    gate.forward(call_of(problem, comm.rank(), out));
    EXPECT_EQ(out, expected[r]);
    const auto used = static_cast<std::ptrdiff_t>(gate.peak_workspace_bytes());
    EXPECT_TRUE(std::all_of(memory.begin() + used, memory.end(),
                            [](std::byte b) { return b == std::byte{0xAA}; }));
    options.workspace = std::span(memory).first(1000);
    const auto [code, message] = error_of([&] {
      const GateLinear small(kMeasuredShape, problem.weight, WeightPart::Full, &comm, options);
    });
    EXPECT_EQ(code, ErrorCode::InvalidArgument) << message;
  });
}

TEST(GateWorkspace, SizesPastTwoGibibytesStayExact) {
  run_thread_group(2, [](Communicator& comm) {
    // Only sizes are computed: a workspace of the caller's that is never touched.
    constexpr GateShape wide{.hidden_size = 8, .output_size = 16384};
    const auto weight = oracle::normal_bf16(wide.hidden_size * wide.output_size, 1.0, 1);
    GateOptions options = with(GateStrategy::KShard);
    std::byte nothing{};
    options.workspace = {&nothing, std::size_t{8} << 30};
    options.max_temp_bytes = std::size_t{8} << 30;
    const GateLinear gate(wide, weight, WeightPart::Full, &comm, options);
    // Sent, received, partial sums of two ranks and their total, in bf16.
    const auto bytes = [](std::size_t tokens) { return tokens * 2 * (8 + 8 + 3 * 16384); };
    for (const std::int64_t tokens : {32'000, 32'768}) {
      EXPECT_EQ(gate.workspace_bytes(tokens, GateStrategy::KShard),
                bytes(static_cast<std::size_t>(tokens)));
    }
    EXPECT_GT(gate.workspace_bytes(32'768, GateStrategy::KShard), std::size_t{3} << 30);
  });
}

TEST(WeightStreamMemory, IsFlatOverAThousandLayersAndOneForAll) {
  // Ranks that cannot read each other: only then does the CPU gather weights into the stream.
  const GateProblem problem = make_problem(kMeasuredShape, {3, 0});
  run_thread_group(2, [&](Communicator& comm) {
    CommCallbacks callbacks;
    callbacks.all_gather = [&](std::span<const std::byte> mine) {
      return comm.all_gather_object(mine);
    };
    const auto stranger = make_callback_communicator(comm.rank(), comm.size(), callbacks);
    GateOptions options = with(GateStrategy::WeightGather);
    options.weight_stream = std::make_shared<WeightStream>(stranger.get(), kMeasuredShape);
    GateLinear gate(kMeasuredShape, problem.weight, WeightPart::Full, stranger.get(), options);
    const std::size_t after_first = options.weight_stream->buffer_bytes();
    const auto r = static_cast<std::size_t>(comm.rank());
    std::vector<BF16> out(problem.attn_out[r].size());
    for (int layer = 0; layer < 1000; ++layer) {
      GateLinear next(kMeasuredShape, problem.weight, WeightPart::Full, stranger.get(), options);
      if (layer % 100 == 0) next.forward(call_of(problem, comm.rank(), out));
      ASSERT_EQ(options.weight_stream->buffer_bytes(), after_first);
    }
  });
}

TEST(GateResidency, KeepsOnlyItsShare) {
  for (const int ranks : {2, 3, 8}) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(ranks), 0);
    const GateProblem problem = make_problem({.hidden_size = 1024, .output_size = 600}, tokens);
    std::atomic<std::size_t> total{0};
    run_thread_group(ranks, [&](Communicator& comm) {
      const GateLinear gate(problem.shape, problem.weight, WeightPart::Full, &comm);
      EXPECT_EQ(gate.resident_part(), WeightPart::Rows);
      EXPECT_EQ(gate.resident_bytes(), static_cast<std::size_t>(gate.owned().size()) * 2048);
      total += gate.resident_bytes();
    });
    EXPECT_EQ(total.load(), problem.weight.size() * sizeof(BF16));
  }
}

TEST(GateResidency, TinyWeightsStayWholeUnderAuto) {
  const GateProblem problem =
      make_problem({.hidden_size = 64, .output_size = 8, .gating = GatingType::Headwise}, {2, 3});
  run_thread_group(2, [&](Communicator& comm) {
    const GateLinear gate(problem.shape, problem.weight, WeightPart::Full, &comm);
    EXPECT_EQ(gate.strategy(), GateStrategy::Replicated);
    EXPECT_EQ(gate.resident_part(), WeightPart::Full);
  });
}

TEST(GateNumerics, KShardStaysWithinItsBound) {
  // Partial sums in bf16 over P ranks: each rounds to 2^-9 of its size, the total once more.
  for (const int ranks : {2, 4, 8}) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(ranks), 16);
    const GateShape shape{.hidden_size = 704, .output_size = 64};
    const GateProblem problem = make_problem(shape, tokens);
    const auto exact = oracle::gate(oracle::project(problem.x[0], problem.weight, 16, 64, 704),
                                    problem.attn_out[0], 1);
    const auto error = [&](GateStrategy strategy, DType sums) {
      GateOptions options = with(strategy);
      options.k_shard_sums = sums;
      const auto found = run_ranks(problem, options)[0];
      double difference = 0;
      double size = 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        difference += std::pow(to_float(found[i]) - exact[i], 2);
        size += exact[i] * exact[i];
      }
      return std::sqrt(difference / size);
    };
    const double whole = error(GateStrategy::Replicated, DType::BF16);
    const double rounded = error(GateStrategy::KShard, DType::BF16);
    const double wide = error(GateStrategy::KShard, DType::F32);
    EXPECT_LT(whole, 1.8e-3);
    EXPECT_LT(wide, 1.05 * whole);
    EXPECT_GT(rounded, 1.02 * whole);
    EXPECT_LT(rounded, 3e-3);  // the sum is added in float: no growth with the ranks
  }
}

TEST(GateNumerics, SameBytesOverRunsAndBlocks) {
  const GateProblem problem = make_problem(kMeasuredShape, {150, 40});
  for (const GateStrategy strategy : {GateStrategy::KShard, GateStrategy::NShard}) {
    std::vector<std::vector<BF16>> first;
    for (const std::size_t limit : {60'000U, 150'000U, 9'000'000U}) {
      for (int run = 0; run < 3; ++run) {
        GateOptions options = with(strategy);
        options.max_temp_bytes = limit;
        const auto found = run_ranks(problem, options);
        if (first.empty()) first = found;
        EXPECT_EQ(found, first) << to_string(strategy) << " " << limit;
      }
    }
  }
}

TEST(GateNumerics, ARowHasTheSameBitsWhereverItStands) {
  const GateShape shape{.hidden_size = 100, .output_size = 96};
  GateProblem problem = make_problem(shape, {300, 1});
  std::copy_n(problem.x[0].begin(), 100, problem.x[1].begin());
  std::copy_n(problem.attn_out[0].begin(), 96, problem.attn_out[1].begin());
  for (const std::int64_t row : {1, 7, 64, 255, 256, 299}) {
    std::copy_n(problem.x[1].begin(), 100, problem.x[0].begin() + row * 100);
    std::copy_n(problem.attn_out[1].begin(), 96, problem.attn_out[0].begin() + row * 96);
  }
  const auto found = run_ranks(problem, with(GateStrategy::WeightGather));
  for (const std::int64_t row : {0, 1, 7, 64, 255, 256, 299}) {
    EXPECT_TRUE(std::equal(found[1].begin(), found[1].end(), found[0].begin() + row * 96)) << row;
  }
}

class GateModel : public testing::Test {
 protected:
  void make(GatingType gating) {
    SyntheticModelOptions options;
    options.family = ModelFamily::HyV4;
    options.layers = {2};
    options.num_hidden_layers = 3;
    options.hidden_size = 96;
    options.num_attention_heads = 10;
    options.v_head_dim = 8;
    options.gating = gating;
    model_ = directory_ / to_string(gating);
    make_synthetic_model(model_, options);
  }

  test::TempDir directory_;
  std::filesystem::path model_;
};

TEST_F(GateModel, OpensTheSameGateWholeAndSharded) {
  for (const GatingType gating : {GatingType::Elementwise, GatingType::Headwise}) {
    make(gating);
    const GateLinear whole = open_gate_linear(model_, 2);
    const std::int64_t outputs = gating == GatingType::Headwise ? 10 : 80;
    EXPECT_EQ(whole.shape(), (GateShape{96, outputs, gating}));
    GateProblem problem = make_problem(whole.shape(), {5, 9}, 80 / outputs);
    std::vector<std::vector<BF16>> expected(2);
    GateLinear reference = open_gate_linear(model_, 2);
    for (int rank = 0; rank < 2; ++rank) {
      auto& out = expected[static_cast<std::size_t>(rank)];
      out.resize(problem.attn_out[static_cast<std::size_t>(rank)].size());
      reference.forward(call_of(problem, rank, out));
    }
    run_thread_group(2, [&](Communicator& comm) {
      GateLinear gate = open_gate_linear(model_, 2, &comm, with(GateStrategy::WeightGather));
      const auto r = static_cast<std::size_t>(comm.rank());
      std::vector<BF16> out(problem.attn_out[r].size());
      gate.forward(call_of(problem, comm.rank(), out));
      EXPECT_EQ(out, expected[r]);
    });
  }
}

TEST_F(GateModel, LayersWithoutAGateAreNamed) {
  make(GatingType::Elementwise);
  const auto [code, message] = error_of([&] { open_gate_linear(model_, 7); });
  EXPECT_EQ(code, ErrorCode::NotFound);
  EXPECT_NE(message.find("layers.7"), std::string::npos) << message;
  EXPECT_EQ(error_of([&] { open_gate_linear(directory_ / "nowhere", 2); }).first,
            ErrorCode::NotFound);
}

}  // namespace
}  // namespace penstock
