// Every strategy at the sizes of released models: up to 64 tokens a rank every day, up to 4,096 when
// PENSTOCK_FULL_SIZES=1 asks for it.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/keyed_numbers.hpp"
#include "gate/gate_ranks.hpp"
#include "penstock/core/matmul.hpp"
#include "penstock/core/parallel.hpp"
#include "support/sanitizers.hpp"

namespace penstock {
namespace {

using Counts = std::vector<std::int64_t>;

/// Relative distances, root mean square, that k_shard's results may have from the replicated ones:
/// a projection's error grows by that of its partial sums, and either result is rounded once.
constexpr double kBF16SumsBound = 3e-3;
constexpr double kF32SumsBound = 3e-4;

bool are_full_sizes_wanted() {
  const char* value = std::getenv("PENSTOCK_FULL_SIZES");
  return value != nullptr && std::string(value) == "1";
}

struct MatrixCase {
  GateShape shape;
  int ranks = 1;

  std::int64_t head_width() const { return shape.gating == GatingType::Headwise ? 256 : 1; }
};

void PrintTo(const MatrixCase& matrix_case, std::ostream* out) {  // NOLINT: GoogleTest's name
  *out << "hidden_" << matrix_case.shape.hidden_size << "_output_" << matrix_case.shape.output_size
       << "_ranks_" << matrix_case.ranks;
}

/// Numbers of mean 0 and the given deviation, made on all processors: uniform ones, so that hundreds
/// of millions of them take no time.
std::vector<BF16> uniform_bf16(std::int64_t count, float deviation, std::uint64_t seed) {
  std::vector<BF16> values(static_cast<std::size_t>(count));
  const float width = deviation * std::sqrt(12.0F);
  parallel_for(count, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint64_t bits = detail::mix_bits((seed << 40U) + static_cast<std::uint64_t>(i));
      values[static_cast<std::size_t>(i)] = to_bf16(detail::even_number(bits) * width);
    }
  });
  return values;
}

/// The longest call of every rank; shorter ones are its first rows.
GateProblem make_longest(const MatrixCase& matrix_case, std::int64_t tokens) {
  GateProblem problem;
  problem.shape = matrix_case.shape;
  problem.attn_width = matrix_case.shape.output_size * matrix_case.head_width();
  problem.tokens.assign(static_cast<std::size_t>(matrix_case.ranks), tokens);
  const std::int64_t hidden = problem.shape.hidden_size;
  problem.weight = uniform_bf16(problem.shape.output_size * hidden,
                                1.5F / std::sqrt(static_cast<float>(hidden)), 1);
  for (int rank = 0; rank < matrix_case.ranks; ++rank) {
    const auto seed = static_cast<std::uint64_t>(rank) * 2 + 2;
    problem.x.push_back(uniform_bf16(tokens * hidden, 1.0F, seed));
    problem.attn_out.push_back(uniform_bf16(tokens * problem.attn_width, 1.0F, seed + 1));
  }
  return problem;
}

/// Tokens of every rank, call by call: equal and ragged ones.
std::vector<Counts> all_counts(int ranks, std::int64_t most) {
  const auto size = static_cast<std::size_t>(ranks);
  std::vector<Counts> all;
  for (const std::int64_t tokens : {0, 1, 7, 64, 257, 1024, 4096}) {
    if (tokens <= most) all.emplace_back(size, tokens);
  }
  if (ranks == 1) return all;
  Counts one_empty(size, std::min<std::int64_t>(257, most));
  one_empty.front() = 0;
  Counts one_full(size, 0);
  one_full.back() = std::min<std::int64_t>(1024, most);
  Counts mixed;
  for (std::size_t rank = 0; rank < size; ++rank) {
    constexpr std::int64_t kMixed[] = {300, 0, 1, 64, 257, 0, 7, 1024};
    mixed.push_back(std::min(kMixed[rank], most));
  }
  all.insert(all.end(), {std::move(one_empty), std::move(one_full), std::move(mixed)});
  return all;
}

GateCall first_rows(const GateProblem& longest, int rank, const Counts& counts,
                    std::span<BF16> out) {
  const auto r = static_cast<std::size_t>(rank);
  const auto tokens = static_cast<std::size_t>(counts[r]);
  const auto width = static_cast<std::size_t>(longest.attn_width);
  GateCall call;
  call.tokens = counts[r];
  call.attn_width = longest.attn_width;
  call.x =
      std::span(longest.x[r]).first(tokens * static_cast<std::size_t>(longest.shape.hidden_size));
  call.attn_out = std::span(longest.attn_out[r]).first(tokens * width);
  call.out = out.first(tokens * width);
  call.token_counts = counts;
  return call;
}

/// Sums over the elements of results and of what they should be.
struct Distance {
  double difference = 0;
  double size = 0;

  double relative() const { return size == 0 ? 0 : std::sqrt(difference / size); }
};

Distance distance_between(std::span<const BF16> found, std::span<const BF16> expected) {
  Distance sum;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double want = to_float(expected[i]);
    const double off = to_float(found[i]) - want;
    sum.difference += off * off;
    sum.size += want * want;
  }
  return sum;
}

bool have_same_bits(std::span<const BF16> found, std::span<const BF16> expected) {
  return found.empty() || std::memcmp(found.data(), expected.data(), found.size_bytes()) == 0;
}

/// All calls of one strategy over the ranks of a case.
class StrategyRun {
 public:
  StrategyRun(const GateProblem& longest, const std::vector<std::vector<BF16>>& expected,
              const std::vector<Counts>& calls)
      : longest_(longest),
        expected_(expected),
        calls_(calls) {}

  void expect_same_bits(GateStrategy strategy) const {
    run(with(strategy), calls_, [&](const GateCall& call, int rank) {
      EXPECT_TRUE(have_same_bits(call.out, expected_of(rank, call)))
          << to_string(strategy) << ", rank " << rank << ", "
          << testing::PrintToString(call.token_counts);
    });
  }

  /// Every rank has rank 0's rows.
  void expect_same_bits_of_identical_rows() const {
    std::vector<Counts> even;
    for (const Counts& counts : calls_) {
      if (std::ranges::count(counts, counts.front()) == std::ssize(counts)) even.push_back(counts);
    }
    run(
        with(GateStrategy::IdenticalRows), even,
        [&](const GateCall& call, int rank) {
          EXPECT_TRUE(have_same_bits(call.out, expected_of(0, call)))
              << "identical rows, rank " << rank << ", " << call.tokens << " tokens";
        },
        [](int) { return 0; });
  }

  /// The largest relative distance of a call on a rank.
  double distance_of_k_shard(DType sums) const {
    GateOptions options = with(GateStrategy::KShard);
    options.k_shard_sums = sums;
    std::vector<double> largest(longest_.tokens.size(), 0.0);
    run(options, calls_, [&](const GateCall& call, int rank) {
      double& mine = largest[static_cast<std::size_t>(rank)];
      mine = std::max(mine, distance_between(call.out, expected_of(rank, call)).relative());
    });
    return *std::max_element(largest.begin(), largest.end());
  }

 private:
  template <typename Check>
  void run(const GateOptions& options, const std::vector<Counts>& calls, const Check& check) const {
    run(options, calls, check, [](int rank) { return rank; });
  }

  /// `rows_of(rank)` is the rank whose rows a rank takes.
  template <typename Check, typename RowsOf>
  void run(const GateOptions& options, const std::vector<Counts>& calls, const Check& check,
           const RowsOf& rows_of) const {
    run_thread_group(longest_.ranks(), [&](Communicator& comm) {
      GateLinear gate(longest_.shape, longest_.weight, WeightPart::Full, &comm, options);
      std::vector<BF16> out(longest_.attn_out[0].size());
      for (const Counts& counts : calls) {
        const GateCall call = first_rows(longest_, rows_of(comm.rank()), counts, out);
        gate.forward(call);
        check(call, comm.rank());
      }
    });
  }

  std::span<const BF16> expected_of(int rank, const GateCall& call) const {
    return std::span(expected_[static_cast<std::size_t>(rank)]).first(call.out.size());
  }

  const GateProblem& longest_;
  const std::vector<std::vector<BF16>>& expected_;
  const std::vector<Counts>& calls_;
};

/// Compares a sample of the replicated results with the definition.
void expect_exact_sample(const GateProblem& problem, const std::vector<std::vector<BF16>>& found) {
  constexpr std::int64_t kSampled = 200;
  const auto hidden = static_cast<std::size_t>(problem.shape.hidden_size);
  const std::int64_t head_width = problem.attn_width / problem.shape.output_size;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    const auto count = static_cast<std::int64_t>(found[rank].size());
    for (std::int64_t sample = 0; sample < kSampled; ++sample) {
      const std::int64_t at = sample * 104729 * 7919 % count;
      const auto row = static_cast<std::size_t>(at / problem.attn_width);
      const auto column = static_cast<std::size_t>(at % problem.attn_width / head_width);
      const auto z = oracle::project(std::span(problem.x[rank]).subspan(row * hidden, hidden),
                                     std::span(problem.weight).subspan(column * hidden, hidden), 1,
                                     1, problem.shape.hidden_size);
      const auto i = static_cast<std::size_t>(at);
      const auto exact = oracle::gate(z, std::span(problem.attn_out[rank]).subspan(i, 1), 1);
      EXPECT_LE(oracle::ulps(found[rank][i], exact[0]), 1.0) << "rank " << rank << ", " << at;
    }
  }
}

double peak_gib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1048576.0;
}

class GateFullMatrix : public testing::TestWithParam<MatrixCase> {};

TEST_P(GateFullMatrix, EveryStrategyAgreesWithTheReplicatedOne) {
  if (!test::kSanitizers.empty()) {
    GTEST_SKIP() << "sanitizers make minutes of it; GateStrategies has small shapes for them";
  }
  const auto begin = std::chrono::steady_clock::now();
  const MatrixCase& matrix_case = GetParam();
  const std::int64_t most = are_full_sizes_wanted() ? 4096 : 64;
  const GateProblem longest = make_longest(matrix_case, most);
  const auto expected = run_alone(longest);
  expect_exact_sample(longest, expected);
  const auto calls = all_counts(matrix_case.ranks, most);
  const StrategyRun strategies(longest, expected, calls);
  strategies.expect_same_bits(GateStrategy::WeightGather);
  strategies.expect_same_bits(GateStrategy::NShard);
  strategies.expect_same_bits_of_identical_rows();
  const double bf16 = strategies.distance_of_k_shard(DType::BF16);
  const double f32 = strategies.distance_of_k_shard(DType::F32);
  EXPECT_LE(bf16, kBF16SumsBound);
  EXPECT_LE(f32, kF32SumsBound);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf(
      "%s: %zu calls of up to %lld tokens, k_shard off by %.2g (bf16 sums), %.2g (f32); %s, %.1f "
      "s, "
      "peak %.1f GiB\n",
      testing::PrintToString(matrix_case).c_str(), calls.size(), static_cast<long long>(most), bf16,
      f32, matmul_kernel_name().c_str(), seconds.count(), peak_gib());
  std::fflush(stdout);
}

std::vector<MatrixCase> all_cases() {
  constexpr GateShape kShapes[] = {{6144, 16384},
                                   {2816, 8192},
                                   {6144, 64, GatingType::Headwise},
                                   {2816, 32, GatingType::Headwise},
                                   {2820, 820}};
  std::vector<MatrixCase> cases;
  for (const GateShape& shape : kShapes) {
    for (const int ranks : {8, 4, 3, 2, 1}) cases.push_back({shape, ranks});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Released, GateFullMatrix, testing::ValuesIn(all_cases()),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace penstock
