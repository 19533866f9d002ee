#include "cli/bench/gate_measurement.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "cli/bench/largest_of.hpp"
#include "cli/bench/random_numbers.hpp"
#include "cli/bench/spread.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/event.hpp"
#include "penstock/gate/gate_rates.hpp"

namespace penstock::cli {
namespace {

constexpr std::int64_t kSampledElements = 256;

/// Numbers of mean 0 and the given deviation.
std::vector<BF16> random_operand(std::int64_t count, float deviation, std::uint64_t seed) {
  constexpr float kWidthOfDeviation = 3.46F;  // sqrt(12), of evenly spread numbers
  return random_bf16(count, deviation * kWidthOfDeviation, seed * 0x9E3779B97F4A7C15ULL + 1);
}

Buffer copied(Device device, const std::vector<BF16>& values) {
  return Buffer::copy_of(std::as_bytes(std::span(values)), device);
}

/// What one rank feeds its gates.
struct Inputs {
  std::vector<BF16> weight;
  std::vector<BF16> x;
  std::vector<BF16> attn_out;
};

/// A limit under which k_shard takes all tokens at once: its buffers, and scratch of the products.
std::size_t one_block_bytes(const GateBenchCase& bench_case) {
  constexpr std::int64_t kScratch = std::int64_t{40} << 20;
  const std::int64_t columns =
      2 * bench_case.shape.hidden_size + (bench_case.ranks + 1) * bench_case.shape.output_size;
  return static_cast<std::size_t>(bench_case.tokens * columns * std::int64_t{sizeof(BF16)} +
                                  kScratch);
}

/// How long `work` products take before each gate, as the planner reckons.
double window_of(const GateBenchCase& bench_case, int work, const GateRates& rates) {
  const GatePlan plan = plan_gate({.shape = bench_case.shape,
                                   .tokens = bench_case.tokens,
                                   .resident = WeightPart::Full,
                                   .rates = rates});
  return work * plan.costs.front().seconds;  // of Replicated
}

/// One way on one rank: its chain of layers and its figures.
class Chain {
 public:
  Chain(const GateWay& way, const GateBenchCase& bench_case, const GateBenchOptions& options,
        const GateRates& rates, Communicator& comm, Device device, const std::vector<BF16>& weight)
      : way_(way),
        other_work_(options.work) {
    GateOptions gate;
    gate.strategy = way.strategy;
    gate.rounding = way.rounding;
    gate.overlaps_blocks = way.overlaps_blocks;
    gate.device = device;
    gate.rates = rates;
    gate.window_seconds = window_of(bench_case, options.work, rates);
    if (options.max_temp_mib > 0) {
      gate.max_temp_bytes = static_cast<std::size_t>(options.max_temp_mib) << 20U;
    }
    if (way.uses_one_block) gate.max_temp_bytes = one_block_bytes(bench_case);
    const auto arrival = options.arrival == "pieces" ? WeightArrival::Pieces : WeightArrival::Whole;
    stream_ = std::make_shared<WeightStream>(&comm, bench_case.shape, device, arrival);
    gate.weight_stream = stream_;
    for (int layer = 0; layer < options.layers; ++layer) {
      layers_.push_back(
          std::make_unique<GateLinear>(bench_case.shape, weight, WeightPart::Full, &comm, gate));
    }
    if (other_work_ == 0) return;
    GateOptions alone;
    alone.strategy = GateStrategy::Replicated;
    alone.device = device;
    other_ =
        std::make_unique<GateLinear>(bench_case.shape, weight, WeightPart::Full, nullptr, alone);
  }

  void run(const GateCall& call, StreamRef stream) {
    GateCall mine = call;
    if (way_.uses_identical_rows) mine.identical_rows = IndexRange{0, call.tokens};
    for (const auto& layer : layers_) {
      for (int i = 0; i < other_work_; ++i) other_->forward(mine_alone(call), stream);
      layer->forward(mine, stream);
    }
  }

  double measure(const GateCall& call, const Stream& stream, Device device, Communicator& comm) {
    Event begin = Event::create(device);
    Event end = Event::create(device);
    // First once without the clock: a processor's speed depends on how hot the way before has left
    // it, by several percent where one way computes and another one waits for a network.
    run(call, stream.ref());
    stream.synchronize();
    comm.barrier();
    begin.record(stream.ref());
    run(call, stream.ref());
    end.record(stream.ref());
    const std::chrono::duration<double, std::milli> time = end.since(begin);
    return time.count() / static_cast<double>(layers_.size());
  }

  void describe(std::int64_t tokens, GateResult& result) const {
    result.temp_bytes =
        layers_[0]->workspace_bytes(tokens, GateStrategy::Auto) + stream_->buffer_bytes();
    result.peak_workspace_bytes = layers_[0]->peak_workspace_bytes();
    result.resident_bytes = layers_[0]->resident_bytes();
    result.transfers = stream_->num_transfers();
  }

 private:
  /// The call as a gate without other ranks takes it.
  static GateCall mine_alone(GateCall call) {
    call.token_counts = call.token_counts.first(1);
    return call;
  }

  GateWay way_;
  int other_work_;
  std::unique_ptr<GateLinear> other_;  ///< What stands for the rest of a layer.
  std::shared_ptr<WeightStream> stream_;
  std::vector<std::unique_ptr<GateLinear>> layers_;
};

/// Root mean square error of a sample of `out`, relative to the size of the exact values.
double sampled_error(const GateBenchCase& bench_case, const Inputs& inputs,
                     const std::vector<BF16>& out) {
  const std::int64_t h = bench_case.shape.hidden_size;
  const std::int64_t g = bench_case.shape.output_size;
  double difference = 0;
  double size = 0;
  const std::int64_t count = bench_case.tokens * g;
  for (std::int64_t sample = 0; sample < kSampledElements; ++sample) {
    const std::int64_t at = (sample * 7919 * 104729) % count;
    double z = 0;
    for (std::int64_t i = 0; i < h; ++i) {
      z += double{to_float(inputs.x[static_cast<std::size_t>(at / g * h + i)])} *
           double{to_float(inputs.weight[static_cast<std::size_t>(at % g * h + i)])};
    }
    const double exact =
        double{to_float(inputs.attn_out[static_cast<std::size_t>(at)])} / (1.0 + std::exp(-z));
    difference += std::pow(to_float(out[static_cast<std::size_t>(at)]) - exact, 2);
    size += exact * exact;
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}

Device device_of(const GateBenchOptions& options, const Communicator& comm) {
  return options.device == "cuda" ? Device::cuda(comm.rank()) : Device::cpu();
}

/// For the ways that move tokens between GPUs; null where NCCL is missing.
std::unique_ptr<Communicator> open_nccl(Communicator& host, Device device) {
  try {
    return make_nccl_communicator(host, device, {.compares_arguments = false});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw;
    return nullptr;
  }
}

/// One rank's part of a measurement.
class RankBench {
 public:
  RankBench(const GateBenchCase& bench_case, const GateBenchOptions& options,
            const GateRates& rates, Communicator& comm, const Inputs& inputs)
      : case_(bench_case),
        options_(options),
        rates_(rates),
        host_(comm),
        inputs_(inputs),
        device_(device_of(options, comm)),
        stream_(Stream::create(device_)),
        x_(copied(device_, inputs.x)),
        attn_out_(copied(device_, inputs.attn_out)),
        out_(Buffer::zeros(device_, inputs.attn_out.size() * sizeof(BF16))),
        counts_(static_cast<std::size_t>(bench_case.ranks), bench_case.tokens) {
    if (device_.kind == DeviceKind::Cuda) nccl_ = open_nccl(host_, device_);
  }

  std::vector<GateResult> run(const std::vector<GateWay>& ways) {
    std::vector<GateResult> results;
    std::vector<std::unique_ptr<Chain>> chains;
    for (const GateWay& way : ways) chains.push_back(prepare(way, results.emplace_back()));
    std::vector<std::vector<double>> times(ways.size());
    std::vector<std::size_t> order(ways.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937 random(1);  // equal on all ranks
    for (int round = 0; round < options_.repeat; ++round) {
      // Every round in another order: no way always follows the same one.
      std::ranges::shuffle(order, random);
      for (const std::size_t i : order) {
        if (!chains[i]) continue;
        times[i].push_back(largest_of(host_, chains[i]->measure(call(), stream_, device_, host_)));
      }
    }
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (!chains[i]) continue;
      const Spread spread = spread_of(std::move(times[i]));
      results[i].median_ms = spread.median;
      results[i].min_ms = spread.least;
      results[i].spread_ms = spread.quartiles;
      chains[i]->describe(case_.tokens, results[i]);
    }
    return results;
  }

 private:
  GateCall call() const {
    GateCall call;
    call.tokens = case_.tokens;
    call.attn_width = case_.shape.output_size;
    call.x = x_.as<BF16>();
    call.attn_out = attn_out_.as<BF16>();
    call.out = out_.as<BF16>();
    call.token_counts = counts_;
    return call;
  }

  Communicator& comm() { return nccl_ ? *nccl_ : host_; }

  /// Makes a way's layers, warms them up and looks at what they compute. Null if this machine
  /// cannot do it; all ranks then know.
  std::unique_ptr<Chain> prepare(const GateWay& way, GateResult& result) {
    result.name = way.name;
    try {
      auto chain =
          std::make_unique<Chain>(way, case_, options_, rates_, comm(), device_, inputs_.weight);
      for (int i = 0; i < 2; ++i) chain->run(call(), stream_.ref());
      std::vector<BF16> out(inputs_.attn_out.size());
      copy_bytes(std::as_writable_bytes(std::span(out)), out_, stream_.ref());
      result.relative_error = sampled_error(case_, inputs_, out);
      return chain;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;
      result.error = error.what();
      return nullptr;
    }
  }

  const GateBenchCase& case_;
  const GateBenchOptions& options_;
  const GateRates& rates_;
  Communicator& host_;
  std::unique_ptr<Communicator> nccl_;
  const Inputs& inputs_;
  Device device_;
  Stream stream_;
  Buffer x_;
  Buffer attn_out_;
  Buffer out_;
  std::vector<std::int64_t> counts_;
};

}  // namespace

GateRates measure_rates(const GateBenchOptions& options) {
  GateRates rates;
  run_thread_group(options.ranks, [&](Communicator& host) {
    const Device device = device_of(options, host);
    const auto nccl = device.kind == DeviceKind::Cuda ? open_nccl(host, device) : nullptr;
    const Stream stream = Stream::create(device);
    const GateRates mine = measure_gate_rates(nccl ? nccl.get() : &host, device, stream.ref());
    if (host.rank() == 0) rates = mine;
  });
  return rates;
}

std::vector<GateResult> measure_gates(const GateBenchCase& bench_case,
                                      const std::vector<GateWay>& ways,
                                      const GateBenchOptions& options, const GateRates& rates) {
  const std::int64_t h = bench_case.shape.hidden_size;
  const std::int64_t g = bench_case.shape.output_size;
  // All ranks have the same tokens, so that one set of inputs serves identical rows as well.
  const Inputs inputs{random_operand(g * h, 1.5F / std::sqrt(static_cast<float>(h)), 1),
                      random_operand(bench_case.tokens * h, 1.0F, 2),
                      random_operand(bench_case.tokens * g, 1.0F, 3)};
  std::vector<GateResult> results;
  run_thread_group(bench_case.ranks, [&](Communicator& comm) {
    RankBench bench(bench_case, options, rates, comm, inputs);
    auto mine = bench.run(ways);
    if (comm.rank() == 0) results = std::move(mine);
  });
  return results;
}

}  // namespace penstock::cli
