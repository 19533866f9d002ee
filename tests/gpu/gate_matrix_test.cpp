// Every strategy on one or two GPUs, at the sizes of released models.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "gpu/gpu_support.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/event.hpp"

namespace penstock {
namespace {

struct MatrixCase {
  std::string name;
  GateShape shape;
  std::int64_t head_width = 1;
};

void PrintTo(const MatrixCase& matrix_case, std::ostream* out) {
  *out << matrix_case.name;
}

/// A strategy, and whether its results have the bits of the replicated ones.
struct Way {
  const char* name = "";
  GateStrategy strategy = GateStrategy::Auto;
  WeightArrival arrival = WeightArrival::Whole;
  bool needs_exchange = false;
  bool has_same_bits = true;
};

constexpr Way kWays[] = {
    {"weight_gather", GateStrategy::WeightGather},
    {"weight_gather in pieces", GateStrategy::WeightGather, WeightArrival::Pieces},
    {"auto", GateStrategy::Auto},
    {"n_shard", GateStrategy::NShard, WeightArrival::Whole, true},
    {"k_shard", GateStrategy::KShard, WeightArrival::Whole, true, false}};

/// One rank's inputs and results on its GPU.
struct Tensors {
  Tensors(Device device, const GateShape& shape, std::int64_t width, std::int64_t tokens,
          std::uint32_t seed)
      : x(upload(device, oracle::normal_bf16(tokens * shape.hidden_size, 1.0, seed))),
        attn_out(upload(device, oracle::normal_bf16(tokens * width, 1.0, seed + 1))),
        out(Buffer::zeros(device, attn_out.bytes())) {}

  static Buffer upload(Device device, const std::vector<BF16>& values) {
    Buffer buffer = Buffer::allocate(device, values.size() * sizeof(BF16));
    if (!values.empty()) copy_bytes(buffer, std::as_bytes(std::span(values)));
    return buffer;
  }
  std::vector<BF16> result(StreamRef stream) const {
    std::vector<BF16> values(out.bytes() / sizeof(BF16));
    if (!values.empty()) copy_bytes(std::as_writable_bytes(std::span(values)), out, stream);
    return values;
  }

  Buffer x;
  Buffer attn_out;
  Buffer out;
};

/// What results may be off by that are rounded elsewhere: k_shard rounds partial sums to bf16.
bool is_near(const std::vector<BF16>& found, const std::vector<BF16>& expected) {
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    difference += std::pow(to_float(found[i]) - to_float(expected[i]), 2);
    size += std::pow(to_float(expected[i]), 2);
  }
  return std::sqrt(difference) <= 5e-3 * std::sqrt(size);
}

/// Whether a product of one rank's rows takes the algorithm of a product of all: every row of x, of
/// the weight and of every share of the results begins at a multiple of 16 bytes.
bool has_aligned_shares(const GateShape& shape, int ranks) {
  constexpr std::int64_t kElements = 16 / sizeof(BF16);
  return shape.hidden_size % kElements == 0 && shape.output_size % (ranks * kElements) == 0;
}

class GateMatrixOnGpu : public testing::TestWithParam<MatrixCase> {};

std::vector<std::vector<std::int64_t>> token_counts(int ranks) {
  std::vector<std::vector<std::int64_t>> counts;
  for (const std::int64_t tokens : {0, 1, 7, 64, 257, 1024, 4096}) {
    counts.emplace_back(static_cast<std::size_t>(ranks), tokens);
  }
  if (ranks == 2) {
    for (const auto& ragged : {std::vector<std::int64_t>{0, 257}, {1024, 1}, {4096, 7}, {65, 64}}) {
      counts.push_back(ragged);
    }
  }
  return counts;
}

void check_ways(Communicator& host, const MatrixCase& matrix_case) {
  const GateShape& shape = matrix_case.shape;
  const std::int64_t width = shape.output_size * matrix_case.head_width;
  const Device device = Device::cuda(host.rank());
  const auto weight =
      oracle::normal_bf16(shape.output_size * shape.hidden_size,
                          1.5 / std::sqrt(static_cast<double>(shape.hidden_size)), 5);
  std::unique_ptr<Communicator> nccl;
  try {
    nccl = make_nccl_communicator(host, device, {.compares_arguments = false});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw;
    if (host.rank() == 0) std::printf("k_shard and n_shard are not run: %s\n", error.what());
  }
  const auto stream = Stream::create(device);
  const auto make = [&](const Way& way) {
    GateOptions options;
    options.strategy = way.strategy;
    options.device = device;
    options.n_shard_projections = DType::BF16;  // as the other strategies keep them on a GPU
    Communicator& comm = way.needs_exchange && nccl ? *nccl : host;
    options.weight_stream = std::make_shared<WeightStream>(&comm, shape, device, way.arrival);
    return std::make_unique<GateLinear>(shape, weight, WeightPart::Full, &comm, options);
  };
  const auto replicated = make({"replicated", GateStrategy::Replicated});
  // Shares of some shapes cannot go through peer memory and need an exchange too.
  const auto identical =
      make({"identical_rows", GateStrategy::IdenticalRows, WeightArrival::Whole, true});
  std::vector<std::unique_ptr<GateLinear>> gates;
  for (const Way& way : kWays) {
    gates.push_back(way.needs_exchange && !nccl ? nullptr : make(way));
  }
  const bool is_aligned = has_aligned_shares(shape, host.size());
  // Headwise projections of identical rows travel as F32, those of a whole gate are rounded to bf16.
  const bool has_identical_bits = is_aligned && shape.gating == GatingType::Elementwise;
  for (const auto& counts : token_counts(host.size())) {
    const std::int64_t tokens = counts[static_cast<std::size_t>(host.rank())];
    // Rows are identical where all ranks have as many.
    const bool is_even = counts.front() == counts.back();
    const Tensors tensors(device, shape, width, tokens,
                          is_even ? 11U : 11U + static_cast<std::uint32_t>(host.rank()));
    GateCall call;
    call.tokens = tokens;
    call.attn_width = width;
    call.x = tensors.x.as<const BF16>();
    call.attn_out = tensors.attn_out.as<const BF16>();
    call.out = tensors.out.as<BF16>();
    call.token_counts = counts;
    const auto run = [&](GateLinear& gate) {
      gate.forward(call, stream.ref());
      auto found = tensors.result(stream.ref());
      // Allocations of the next case must not meet a rank that still waits for another.
      host.barrier();
      return found;
    };
    const auto expected = run(*replicated);
    for (std::size_t i = 0; i < gates.size(); ++i) {
      if (!gates[i]) continue;
      const auto found = run(*gates[i]);
      const bool has_same_bits = kWays[i].has_same_bits && (is_aligned || !kWays[i].needs_exchange);
      EXPECT_TRUE(has_same_bits ? found == expected : is_near(found, expected))
          << kWays[i].name << ", rank " << host.rank() << ", tokens " << counts.front() << " and "
          << counts.back();
    }
    if (is_even) {
      const auto found = run(*identical);
      EXPECT_TRUE(has_identical_bits ? found == expected : is_near(found, expected))
          << "identical_rows, rank " << host.rank() << ", " << tokens << " tokens";
    }
  }
}

TEST_P(GateMatrixOnGpu, EveryStrategyAgreesWithTheReplicatedOne) {
  for (const int ranks : {1, 2}) {
    if (cuda_device_count() < ranks) {
      GTEST_SKIP() << ranks << " GPUs are needed, " << cuda_device_count() << " are here";
    }
    run_thread_group(ranks, [](Communicator& host) { check_ways(host, GetParam()); });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GateMatrixOnGpu,
    testing::Values(MatrixCase{"hidden_2816_output_8192", {2816, 8192}},
                    MatrixCase{"hidden_6144_output_16384", {6144, 16384}},
                    MatrixCase{"hidden_2816_heads_32", {2816, 32, GatingType::Headwise}, 256},
                    MatrixCase{"hidden_6144_heads_64", {6144, 64, GatingType::Headwise}, 256},
                    MatrixCase{"hidden_2820_output_820", {2820, 820}}),
    [](const testing::TestParamInfo<MatrixCase>& param) { return param.param.name; });

}  // namespace
}  // namespace penstock
