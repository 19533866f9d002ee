// k_shard on two GPUs, whose blocks overlap. What is ordered before what is tested on the CPU, in
// tests/gate/overlap_test.cpp.

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "gpu/gate_calls.hpp"
#include "gpu/gpu_support.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/event.hpp"
#include "penstock/gate/gate_rates.hpp"

namespace penstock {
namespace {

constexpr GateShape kShape{.hidden_size = 1024, .output_size = 2048};

/// What is wrong with this machine; nothing if `body` ran.
std::string on_two_gpus(const std::function<void(Communicator& host, Communicator& nccl)>& body) {
  if (cuda_device_count() < 2) {
    return "2 GPUs are needed, " + std::to_string(cuda_device_count()) + " are here";
  }
  std::vector<std::string> reasons(2);
  run_thread_group(2, [&](Communicator& host) {
    const Device device = device_of(host.rank());
    PENSTOCK_CUDA_CHECK(cudaSetDevice(device.index));
    std::unique_ptr<Communicator> nccl;
    try {
      nccl = make_nccl_communicator(host, device, {.compares_arguments = false});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;
      reasons[static_cast<std::size_t>(host.rank())] = error.what();
      return;
    }
    body(host, *nccl);
  });
  return reasons[0];
}

GateOptions k_shard_options(int rank, DType sums, bool overlaps_blocks, std::size_t limit) {
  GateOptions options = on_gpu(GateStrategy::KShard, rank);
  options.k_shard_sums = sums;
  options.overlaps_blocks = overlaps_blocks;
  options.max_temp_bytes = limit;
  return options;
}

/// Gates of the same blocks, with overlap and without.
struct GatePair {
  GatePair(Communicator& nccl, const std::vector<BF16>& weight, DType sums) {
    const auto make = [&](bool overlaps_blocks, std::size_t limit) {
      return std::make_unique<GateLinear>(
          kShape, weight, WeightPart::Full, &nccl,
          k_shard_options(nccl.rank(), sums, overlaps_blocks, limit));
    };
    constexpr std::size_t kPlenty = std::size_t{1} << 30;
    const std::size_t scratch = make(false, kPlenty)->workspace_bytes(1, GateStrategy::KShard);
    overlapped = make(true, scratch + (std::size_t{4} << 20));
    const std::int64_t block = overlapped->block_tokens();
    in_turn = make(false, make(false, kPlenty)->workspace_bytes(block, GateStrategy::KShard));
  }

  std::unique_ptr<GateLinear> overlapped;
  std::unique_ptr<GateLinear> in_turn;
};

/// Gives a rank new inputs, the same in every run of the test.
void refresh(DeviceCall& device_call, std::uint32_t seed) {
  const auto count = static_cast<std::int64_t>(device_call.x.bytes() / sizeof(BF16));
  if (count == 0) return;
  const auto values = oracle::normal_bf16(count, 1.0, seed);
  copy_bytes(device_call.x, std::as_bytes(std::span(values)));
}

TEST(GateOverlapOnGpu, HasTheBitsOfBlocksInTurn) {
  const auto reason = on_two_gpus([](Communicator& host, Communicator& nccl) {
    const auto weight = make_problem(kShape, {0, 0}).weight;
    const auto stream = Stream::create(nccl.device());
    for (const DType sums : {DType::BF16, DType::F32}) {
      const GatePair gates(nccl, weight, sums);
      const std::int64_t block = gates.overlapped->block_tokens();
      ASSERT_EQ(gates.in_turn->block_tokens(), block);
      for (const std::vector<std::int64_t>& tokens : {std::vector<std::int64_t>{block, 1},
                                                      {block + 1, block},
                                                      {0, 2 * block + 7},
                                                      {5 * block, 4 * block - 1},
                                                      {9 * block + 3, 17}}) {
        const GateProblem problem = make_problem(kShape, tokens);
        DeviceCall device_call(problem, host.rank());
        host.barrier();  // nobody allocates while another's exchange waits for him
        for (std::uint32_t round = 0; round < 10; ++round) {
          refresh(device_call, 100 * round + static_cast<std::uint32_t>(host.rank()));
          gates.in_turn->forward(device_call.call, stream.ref());
          const auto expected = device_call.result(stream.ref());
          gates.overlapped->forward(device_call.call, stream.ref());
          EXPECT_TRUE(device_call.result(stream.ref()) == expected)
              << "rank " << host.rank() << ", round " << round << ", "
              << testing::PrintToString(tokens);
        }
        host.barrier();
      }
    }
  });
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST(GateOverlapOnGpu, TakesWhatItSaysAndAllocatesNothingMore) {
  const auto reason = on_two_gpus([](Communicator& host, Communicator& nccl) {
    const auto weight = make_problem(kShape, {0, 0}).weight;
    const auto stream = Stream::create(nccl.device());
    const GatePair gates(nccl, weight, DType::BF16);
    const std::int64_t block = gates.overlapped->block_tokens();
    std::size_t one_block = 0;
    for (const std::int64_t tokens : {block, 6 * block + 5}) {
      const GateProblem problem = make_problem(kShape, {tokens, tokens});
      DeviceCall device_call(problem, host.rank());
      host.barrier();
      gates.overlapped->forward(device_call.call, stream.ref());
      stream.synchronize();
      host.barrier();
      const auto bytes_taken = [&] {
        const auto before = static_cast<std::int64_t>(free_bytes(nccl.device()));
        for (int round = 0; round < 20; ++round) {
          gates.overlapped->forward(device_call.call, stream.ref());
        }
        stream.synchronize();
        return before - static_cast<std::int64_t>(free_bytes(nccl.device()));
      };
      // Another process may take memory of the GPU meanwhile; calls that do take it every time. Both
      // ranks measure as often: each call needs the other.
      std::vector<std::int64_t> taken;
      for (int attempt = 0; attempt < 3; ++attempt) taken.push_back(bytes_taken());
      EXPECT_NE(std::ranges::count(taken, 0), 0) << testing::PrintToString(taken);
      EXPECT_EQ(gates.overlapped->peak_workspace_bytes(),
                gates.overlapped->workspace_bytes(tokens, GateStrategy::KShard));
      if (tokens == block) {
        one_block = gates.overlapped->peak_workspace_bytes();
        EXPECT_EQ(one_block, gates.in_turn->workspace_bytes(block, GateStrategy::KShard));
      }
      host.barrier();
    }
    EXPECT_GT(gates.overlapped->peak_workspace_bytes(), one_block);
  });
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST(GateRatesOnGpu, AreTheSameOnBothAndOnTheCommunicatorsOwnStream) {
  const auto reason = on_two_gpus([](Communicator& host, Communicator& nccl) {
    const auto stream = Stream::create(nccl.device());
    const GateRates rates = measure_gate_rates(&nccl, nccl.device(), stream.ref());
    if (host.rank() == 0) std::printf("%s\n", to_string(rates).c_str());
    const GateProblem problem = make_problem(kShape, {300, 300});
    GateOptions options = k_shard_options(host.rank(), DType::BF16, true, std::size_t{64} << 20);
    options.rates = rates;  // ranks whose rates differ would be refused
    GateLinear gate(kShape, problem.weight, WeightPart::Full, &nccl, options);
    DeviceCall device_call(problem, host.rank());
    host.barrier();
    gate.forward(device_call.call, stream.ref());
    stream.synchronize();
    EXPECT_GT(rates.link_bytes_per_second, 1e9);
    EXPECT_GT(rates.flops_per_second, 1e12);
    EXPECT_GT(rates.memory_bytes_per_second, 1e11);
    EXPECT_LT(rates.collective_seconds, 1e-2);
    host.barrier();
  });
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST(GateOverlapOnGpu, ReplaysOfAGraphSeeNewInputs) {
  const auto reason = on_two_gpus([](Communicator& host, Communicator& nccl) {
    const auto weight = make_problem(kShape, {0, 0}).weight;
    const gpu::Stream stream;
    const GatePair gates(nccl, weight, DType::BF16);
    const std::int64_t tokens = 4 * gates.overlapped->block_tokens() + 9;
    const GateProblem problem = make_problem(kShape, {tokens, tokens - 3});
    DeviceCall device_call(problem, host.rank());
    host.barrier();
    gates.overlapped->forward(device_call.call, stream.ref());  // loads what it needs
    gates.in_turn->forward(device_call.call, stream.ref());
    stream.synchronize();
    host.barrier();
    // Twice, so that the side stream is forked and joined more than once.
    const gpu::Graph graph(stream, [&] {
      gates.overlapped->forward(device_call.call, stream.ref());
      gates.overlapped->forward(device_call.call, stream.ref());
    });
    for (std::uint32_t replay = 0; replay < 100; ++replay) {
      refresh(device_call, 1000 * replay + static_cast<std::uint32_t>(host.rank()));
      gates.in_turn->forward(device_call.call, stream.ref());
      const auto expected = device_call.result(stream.ref());
      const std::vector<BF16> nothing(expected.size());
      copy_bytes(device_call.out, std::as_bytes(std::span(nothing)));
      graph.launch(stream);
      ASSERT_TRUE(device_call.result(stream.ref()) == expected) << "replay " << replay;
    }
    host.barrier();
  });
  if (!reason.empty()) GTEST_SKIP() << reason;
}

}  // namespace
}  // namespace penstock
