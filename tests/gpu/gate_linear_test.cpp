#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "gpu/gate_calls.hpp"
#include "gpu/gpu_support.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/event.hpp"

namespace penstock {
namespace {

/// What every rank computes; some layers of one weight stream, called a few times over.
std::vector<std::vector<BF16>> run_on_gpus(const GateProblem& problem, GateStrategy strategy,
                                           WeightArrival arrival, bool is_in_place = false) {
  std::vector<std::vector<BF16>> results(problem.tokens.size());
  run_thread_group(problem.ranks(), [&](Communicator& comm) {
    const int rank = comm.rank();
    const auto stream = Stream::create(device_of(rank));
    GateOptions options = on_gpu(strategy, rank);
    options.weight_stream =
        std::make_shared<WeightStream>(&comm, problem.shape, device_of(rank), arrival);
    std::vector<std::unique_ptr<GateLinear>> layers;
    for (int layer = 0; layer < 3; ++layer) {
      layers.push_back(std::make_unique<GateLinear>(problem.shape, problem.weight, WeightPart::Full,
                                                    &comm, options));
    }
    // Nothing is freed between calls: that would wait for the GPU, which may wait for this rank.
    DeviceCall device_call(problem, rank);
    const auto& attn_out = problem.attn_out[static_cast<std::size_t>(rank)];
    if (is_in_place) {
      device_call.call.attn_out = device_call.out.as<BF16>();
    }
    for (int round = 0; round < 5; ++round) {
      for (const auto& layer : layers) {
        if (is_in_place) copy_bytes(device_call.out, std::as_bytes(std::span(attn_out)));
        layer->forward(device_call.call, stream.ref());
        const auto found = device_call.result(stream.ref());
        auto& kept = results[static_cast<std::size_t>(rank)];
        if (kept.empty()) kept = found;
        EXPECT_EQ(kept, found) << "round " << round;
      }
    }
    comm.barrier();
  });
  return results;
}

void expect_close(const std::vector<std::vector<BF16>>& found,
                  const std::vector<std::vector<BF16>>& expected) {
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    ASSERT_EQ(found[rank].size(), expected[rank].size());
    for (std::size_t i = 0; i < found[rank].size(); ++i) {
      const float want = to_float(expected[rank][i]);
      ASSERT_NEAR(to_float(found[rank][i]), want, 1e-2F + 1e-2F * std::abs(want)) << i;
    }
  }
}

constexpr GateShape kShape{.hidden_size = 512, .output_size = 1024};

TEST(GateOnGpu, AgreesWithTheCpu) {
  const GateProblem problem = make_problem(kShape, {37, 300});
  const auto expected = run_alone(problem);
  expect_close(run_on_gpus(problem, GateStrategy::Replicated, WeightArrival::Whole), expected);
  const GateProblem heads =
      make_problem({512, 16, GatingType::Headwise}, {37, 5}, /*head_width=*/64);
  expect_close(run_on_gpus(heads, GateStrategy::Replicated, WeightArrival::Whole),
               run_alone(heads));
}

TEST(GateOnGpu, PulledWeightsHaveTheBitsOfTheWhole) {
  for (const std::vector<std::int64_t>& tokens :
       {std::vector<std::int64_t>{64, 64}, {1, 0}, {300, 17}, {5, 0, 2500}}) {
    const GateProblem problem = make_problem(kShape, tokens);
    const auto expected = run_on_gpus(problem, GateStrategy::Replicated, WeightArrival::Whole);
    for (const auto arrival : {WeightArrival::Whole, WeightArrival::Pieces}) {
      EXPECT_EQ(run_on_gpus(problem, GateStrategy::WeightGather, arrival), expected);
      EXPECT_EQ(run_on_gpus(problem, GateStrategy::Auto, arrival), expected);
    }
  }
}

TEST(GateOnGpu, RowsThatDoNotFillPagesHaveTheBitsOfTheWhole) {
  // 3 MiB and a bit: over 2, 3 and 4 ranks rows begin and end within pages of 2 MiB.
  const GateShape shape{.hidden_size = 1000, .output_size = 1608};
  for (const std::vector<std::int64_t>& tokens :
       {std::vector<std::int64_t>{33, 70}, {5, 0, 40}, {9, 17, 3, 20}}) {
    const GateProblem problem = make_problem(shape, tokens);
    const auto expected = run_on_gpus(problem, GateStrategy::Replicated, WeightArrival::Whole);
    for (const auto arrival : {WeightArrival::Whole, WeightArrival::Pieces}) {
      const auto found = run_on_gpus(problem, GateStrategy::WeightGather, arrival);
      EXPECT_TRUE(found == expected)
          << tokens.size() << " ranks, arrival " << static_cast<int>(arrival);
    }
  }
}

TEST(GateOnGpu, WorksInPlace) {
  const GateProblem problem = make_problem(kShape, {64, 2500});
  const auto expected = run_on_gpus(problem, GateStrategy::Replicated, WeightArrival::Whole);
  for (const auto strategy : {GateStrategy::Replicated, GateStrategy::WeightGather}) {
    EXPECT_EQ(run_on_gpus(problem, strategy, WeightArrival::Whole, true), expected);
  }
}

TEST(GateOnGpu, IdenticalRowsHaveTheBitsOfTheWhole) {
  for (const std::int64_t tokens : {1, 7, 64, 128, 300}) {
    for (const int ranks : {2, 4}) {
      GateProblem problem =
          make_problem(kShape, std::vector<std::int64_t>(static_cast<std::size_t>(ranks), tokens));
      make_identical(problem);
      EXPECT_EQ(run_on_gpus(problem, GateStrategy::IdenticalRows, WeightArrival::Whole),
                run_on_gpus(problem, GateStrategy::Replicated, WeightArrival::Whole))
          << tokens << " tokens, " << ranks << " ranks";
    }
  }
}

TEST(GateOnGpu, ReplaysOfAGraphSeeNewInputs) {
  const GateProblem problem = make_problem(kShape, {64, 64});
  GateProblem identical = problem;
  make_identical(identical);
  for (const GateStrategy strategy : {GateStrategy::WeightGather, GateStrategy::IdenticalRows}) {
    if (strategy == GateStrategy::IdenticalRows && cuda_device_count() < 2) {
      GTEST_SKIP() << "graphs whose kernels wait for each other: 2 GPUs are needed, 1 is here";
    }
    const GateProblem& used = strategy == GateStrategy::IdenticalRows ? identical : problem;
    const auto expected = run_on_gpus(used, GateStrategy::Replicated, WeightArrival::Whole);
    run_thread_group(2, [&](Communicator& comm) {
      const int rank = comm.rank();
      PENSTOCK_CUDA_CHECK(cudaSetDevice(device_of(rank).index));
      const gpu::Stream stream;
      GateOptions options = on_gpu(strategy, rank);
      options.weight_stream = std::make_shared<WeightStream>(&comm, kShape, device_of(rank));
      GateLinear first(kShape, used.weight, WeightPart::Full, &comm, options);
      GateLinear second(kShape, used.weight, WeightPart::Full, &comm, options);
      DeviceCall device_call(used, rank);
      first.forward(device_call.call, stream.ref());
      second.forward(device_call.call, stream.ref());
      stream.synchronize();
      comm.barrier();
      const gpu::Graph graph(stream, [&] {
        first.forward(device_call.call, stream.ref());
        second.forward(device_call.call, stream.ref());
      });
      for (int replay = 0; replay < 1000; ++replay) {
        const auto nothing = std::vector<BF16>(device_call.out.bytes() / sizeof(BF16));
        copy_bytes(device_call.out, std::as_bytes(std::span(nothing)));
        graph.launch(stream);
        ASSERT_TRUE(device_call.result(stream.ref()) == expected[static_cast<std::size_t>(rank)])
            << "replay " << replay;
        if (replay % 100 != 0) continue;
        first.forward(device_call.call, stream.ref());  // eager, between replays
        EXPECT_EQ(device_call.result(stream.ref()), expected[static_cast<std::size_t>(rank)]);
      }
      comm.barrier();
    });
  }
}

TEST(GateOnGpu, ManyLayersKeepMemoryFlat) {
  constexpr GateShape kPages{.hidden_size = 1024, .output_size = 4096};  // 2 MiB pages: 2 a rank
  const GateProblem problem = make_problem(kPages, {16, 16});
  run_thread_group(2, [&](Communicator& comm) {
    const int rank = comm.rank();
    const auto stream = Stream::create(device_of(rank));
    GateOptions options = on_gpu(GateStrategy::WeightGather, rank);
    options.weight_stream = std::make_shared<WeightStream>(&comm, kPages, device_of(rank));
    std::vector<std::unique_ptr<GateLinear>> layers;
    for (int layer = 0; layer < 20; ++layer) {
      layers.push_back(
          std::make_unique<GateLinear>(kPages, problem.weight, WeightPart::Full, &comm, options));
    }
    const std::size_t before = options.weight_stream->buffer_bytes();
    // Twice the other rank's half, in pages.
    EXPECT_EQ(before, problem.weight.size() * sizeof(BF16));
    DeviceCall device_call(problem, rank);
    layers[0]->forward(device_call.call, stream.ref());  // loads what it needs
    const auto expected = device_call.result(stream.ref());
    comm.barrier();
    const std::size_t free_before = free_bytes(device_of(rank));
    for (int round = 0; round < 50; ++round) {
      for (const auto& layer : layers) layer->forward(device_call.call, stream.ref());
    }
    stream.synchronize();
    EXPECT_EQ(free_bytes(device_of(rank)), free_before);
    EXPECT_EQ(options.weight_stream->buffer_bytes(), before);
    EXPECT_TRUE(device_call.result(stream.ref()) == expected);
    comm.barrier();
  });
}

TEST(GateOnGpu, AnotherCommunicatorBesideItBlocksNeither) {
  if (cuda_device_count() < 2) {
    GTEST_SKIP() << "2 GPUs are needed, " << cuda_device_count() << " are here";
  }
  const GateProblem problem = make_problem(kShape, {64, 64});
  GateProblem identical = problem;
  make_identical(identical);
  const auto expected = run_on_gpus(identical, GateStrategy::Replicated, WeightArrival::Whole);
  run_thread_group(2, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const Device device = device_of(comm.rank());
    const auto other_host = comm.split(0, comm.rank());
    std::unique_ptr<Communicator> other;
    try {
      other = make_nccl_communicator(*other_host, device, {.compares_arguments = false});
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::Unsupported) << error.what();
      GTEST_SKIP() << error.what();
    }
    const auto stream = Stream::create(device);
    const auto other_stream = Stream::create(device);
    const Buffer in = Buffer::zeros(device, 1 << 20);
    const Buffer gathered = Buffer::zeros(device, 2 << 20);
    const auto talk = [&] {
      other->all_gather(in.as<const std::byte>(), gathered.as<std::byte>(), other_stream.ref());
    };
    talk();  // loads what it needs
    other_stream.synchronize();
    GateOptions options = on_gpu(GateStrategy::IdenticalRows, comm.rank());
    GateOptions pulled = on_gpu(GateStrategy::WeightGather, comm.rank());
    GateLinear pulling(kShape, identical.weight, WeightPart::Full, &comm, pulled);
    GateLinear gathering(kShape, identical.weight, WeightPart::Full, &comm, options);
    DeviceCall device_call(identical, comm.rank());
    comm.barrier();
    for (int round = 0; round < 200; ++round) {
      // The ranks take turns at what they enqueue first.
      if ((round + comm.rank()) % 2 == 0) talk();
      pulling.forward(device_call.call, stream.ref());
      gathering.forward(device_call.call, stream.ref());
      if ((round + comm.rank()) % 2 != 0) talk();
    }
    other_stream.synchronize();
    EXPECT_TRUE(device_call.result(stream.ref()) == expected[rank]);
    comm.barrier();
  });
}

TEST(GateOnGpu, TokenExchangeNeedsACommunicatorForDeviceMemory) {
  const GateProblem problem = make_problem(kShape, {4, 4});
  for (const GateStrategy strategy : {GateStrategy::NShard, GateStrategy::KShard}) {
    EXPECT_EQ(error_of([&] { run_on_gpus(problem, strategy, WeightArrival::Whole); }).first,
              ErrorCode::Unsupported);
  }
}

}  // namespace
}  // namespace penstock
