#include "penstock/gate/gate_rates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "gate/measure_rates.hpp"
#include "support/forwarding_communicator.hpp"

namespace penstock {
namespace {

constexpr detail::RateSizes kTinySizes{.shape = {.hidden_size = 64, .output_size = 96},
                                       .product_tokens = 8,
                                       .product_rows = 48,
                                       .few_tokens = 2,
                                       .collective_bytes = 16,
                                       .gather_bytes = 4096,
                                       .repeats = 3};

void expect_positive(const GateRates& rates) {
  EXPECT_GT(rates.link_bytes_per_second, 0);
  EXPECT_GT(rates.flops_per_second, 0);
  EXPECT_GT(rates.memory_bytes_per_second, 0);
  EXPECT_GT(rates.collective_seconds, 0);
}

TEST(MeasureGateRates, ArePositiveAndTheSameOnAllRanksAndSoArePlans) {
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<GateRates> rates(static_cast<std::size_t>(ranks));
    std::vector<GateStrategy> chosen(rates.size());
    const GateProblem problem = make_problem({.hidden_size = 1024, .output_size = 1024},
                                             std::vector<std::int64_t>(rates.size(), 1));
    run_thread_group(ranks, [&](Communicator& comm) {
      const auto r = static_cast<std::size_t>(comm.rank());
      GateOptions options;
      options.rates = rates[r] = detail::measure_gate_rates(&comm, Device::cpu(), kTinySizes);
      // Ranks whose rates differ in a bit would be refused.
      const GateLinear gate(problem.shape, problem.weight, WeightPart::Full, &comm, options);
      chosen[r] = gate.plan(300).distinct;
    });
    for (std::size_t rank = 0; rank < rates.size(); ++rank) {
      expect_positive(rates[rank]);
      EXPECT_EQ(rates[rank], rates[0]);
      EXPECT_EQ(chosen[rank], chosen[0]);
    }
  }
}

TEST(MeasureGateRates, OfThisMachineAreOnesThatAMachineCanHave) {
  const GateRates rates = measure_gate_rates(nullptr);
  expect_positive(rates);
  // A kilobyte or a petabyte a second would be a mistake in a unit.
  EXPECT_GT(rates.flops_per_second, 1e7);
  EXPECT_LT(rates.flops_per_second, 1e15);
  EXPECT_GT(rates.memory_bytes_per_second, 1e7);
  EXPECT_LT(rates.memory_bytes_per_second, 1e14);
  // Alone there is nothing to exchange, and nothing that was measured.
  EXPECT_EQ(rates.link_bytes_per_second, typical_gate_rates(DeviceKind::Cpu).link_bytes_per_second);
}

TEST(MeasureGateRates, GoThroughAnyCommunicator) {
  run_thread_group(2, [&](Communicator& comm) {
    CommCallbacks callbacks;
    callbacks.all_gather = [&](std::span<const std::byte> mine) {
      return comm.all_gather_object(mine);
    };
    const auto stranger = make_callback_communicator(comm.rank(), comm.size(), callbacks);
    const GateRates rates = detail::measure_gate_rates(stranger.get(), Device::cpu(), kTinySizes);
    expect_positive(rates);
    EXPECT_NE(rates.collective_seconds, typical_gate_rates(DeviceKind::Cpu).collective_seconds);
  });
}

/// Fails before its second collective, when the others are waiting for it in theirs.
class FailingCommunicator final : public test::ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                  StreamRef stream) override {
    if (++calls_ == 2) throw Error(ErrorCode::System, "injected");
    ForwardingCommunicator::all_gather(in, out, stream);
  }

 private:
  int calls_ = 0;
};

TEST(MeasureGateRates, OfARankThatFailsOnTheWayAreAnErrorOnAllThatNamesIt) {
  std::latch all_have_ended(3);  // no rank leaves the group before: that would end the others too
  const auto group = make_thread_group(3, {.deadline = std::chrono::seconds(5)});
  std::vector<std::pair<ErrorCode, std::string>> errors(3);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      FailingCommunicator failing(*group[rank]);
      Communicator& comm = rank == 1 ? failing : *group[rank];
      errors[rank] =
          error_of([&] { detail::measure_gate_rates(&comm, Device::cpu(), kTinySizes); });
      all_have_ended.arrive_and_wait();
    });
  }
  threads.clear();
  EXPECT_EQ(errors[1], std::pair(ErrorCode::System, std::string("injected")));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_EQ(errors[rank].first, ErrorCode::PeerFailed);
    EXPECT_THAT(errors[rank].second, testing::HasSubstr("rank 1"));
    EXPECT_THAT(errors[rank].second, testing::HasSubstr("injected"));
  }
}

TEST(MeasureGateRates, ReadAsALine) {
  EXPECT_EQ(to_string(GateRates{384e9, 700e12, 4.3e12, 12e-6}),
            "link 384.0 GB/s, products 700.00 TFLOP/s, memory 4300.0 GB/s, collective 12.0 us");
}

}  // namespace
}  // namespace penstock
