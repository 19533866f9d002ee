// One rank of a gate over processes, which cannot read each other's rows in place: gate_rank SCENARIO.
// Every difference from what one rank alone computes is a line on stderr; then the exit code is 1.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "penstock/comm/launch.hpp"

namespace penstock {
namespace {

constexpr GateShape kOdd{.hidden_size = 52, .output_size = 83};
constexpr GateShape kSmaller{.hidden_size = 36, .output_size = 41};
constexpr GateShape kHeads{.hidden_size = 44, .output_size = 6, .gating = GatingType::Headwise};

/// Compares, and remembers whether anything differed.
class Findings {
 public:
  void expect(bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "wrong: %s\n", what.c_str());
    has_any_ = true;
  }
  int exit_code() const { return has_any_ ? 1 : 0; }

 private:
  bool has_any_ = false;
};

/// Tokens of `ranks` ranks: as many everywhere, and mixes with ranks that have none.
std::vector<std::vector<std::int64_t>> token_mixes(int ranks) {
  std::vector<std::vector<std::int64_t>> mixes{{}, {}, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    mixes[0].push_back(7);
    mixes[1].push_back(rank % 2 == 0 ? 5 : 0);
    mixes[2].push_back(rank == ranks - 1 ? 64 : 0);
  }
  return mixes;
}

std::vector<BF16> forward(GateLinear& gate, const GateProblem& problem, int rank,
                          bool are_identical = false) {
  std::vector<BF16> out(problem.attn_out[static_cast<std::size_t>(rank)].size());
  GateCall call = call_of(problem, rank, out);
  call.token_counts = problem.tokens;
  if (are_identical) call.identical_rows = {0, call.tokens};
  gate.forward(call);
  return out;
}

void check_row_shards(Communicator& comm, Findings& findings) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  for (const auto& tokens : token_mixes(comm.size())) {
    for (const GateShape& shape : {kOdd, kHeads}) {
      const GateProblem problem = make_problem(shape, tokens, shape == kHeads ? 5 : 1);
      const auto expected = run_alone(problem)[rank];
      for (const GateStrategy strategy : {GateStrategy::Replicated, GateStrategy::NShard,
                                          GateStrategy::WeightGather, GateStrategy::Auto}) {
        GateLinear gate(shape, problem.weight, WeightPart::Full, &comm, with(strategy));
        findings.expect(forward(gate, problem, comm.rank()) == expected,
                        std::string(to_string(strategy)));
      }
    }
  }
}

void check_identical_rows(Communicator& comm, Findings& findings) {
  GateProblem problem =
      make_problem(kOdd, std::vector<std::int64_t>(static_cast<std::size_t>(comm.size()), 9));
  make_identical(problem);
  const auto expected = run_alone(problem)[0];
  for (const GateStrategy strategy : {GateStrategy::IdenticalRows, GateStrategy::NShard}) {
    GateLinear gate(kOdd, problem.weight, WeightPart::Full, &comm, with(strategy));
    findings.expect(forward(gate, problem, comm.rank(), true) == expected,
                    std::string(to_string(strategy)));
  }
}

void check_column_shards(Communicator& comm, Findings& findings) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  for (const auto& tokens : token_mixes(comm.size())) {
    const GateProblem problem = make_problem(kOdd, tokens);
    const auto expected = run_ranks(problem, with(GateStrategy::KShard))[rank];
    GateLinear gate(kOdd, problem.weight, WeightPart::Full, &comm, with(GateStrategy::KShard));
    findings.expect(forward(gate, problem, comm.rank()) == expected,
                    "k_shard has other bits than over threads");
  }
}

/// Layers of two shapes, whose weights travel through one buffer.
void check_shared_stream(Communicator& comm, Findings& findings) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  const std::vector<std::int64_t> tokens(static_cast<std::size_t>(comm.size()), 3);
  const GateProblem problems[] = {make_problem(kOdd, tokens), make_problem(kSmaller, tokens)};
  GateOptions options = with(GateStrategy::WeightGather);
  options.weight_stream = std::make_shared<WeightStream>(&comm, kOdd);
  std::vector<GateLinear> gates;
  for (const GateProblem& problem : problems) {
    gates.emplace_back(problem.shape, problem.weight, WeightPart::Full, &comm, options);
    const auto longest_slice = static_cast<std::size_t>((83 + comm.size() - 1) / comm.size());
    const auto ranks = static_cast<std::size_t>(comm.size());
    findings.expect(
        options.weight_stream->buffer_bytes() == ranks * longest_slice * 52 * sizeof(BF16),
        "the buffer has " + std::to_string(options.weight_stream->buffer_bytes()) + " bytes");
  }
  constexpr int kRounds = 3;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t layer = 0; layer < gates.size(); ++layer) {
      gates[layer].prefetch();
      findings.expect(
          forward(gates[layer], problems[layer], comm.rank()) == run_alone(problems[layer])[rank],
          "layer " + std::to_string(layer));
    }
  }
  findings.expect(options.weight_stream->num_transfers() == kRounds * 2,
                  std::to_string(options.weight_stream->num_transfers()) + " transfers");
}

int run(const std::string& scenario) {
  const auto launch = detect_launch();
  if (!launch) return 2;
  const auto comm = join_launch(*launch);
  Findings findings;
  if (scenario == "row-shards") check_row_shards(*comm, findings);
  if (scenario == "identical-rows") check_identical_rows(*comm, findings);
  if (scenario == "column-shards") check_column_shards(*comm, findings);
  if (scenario == "shared-stream") check_shared_stream(*comm, findings);
  comm->barrier();
  return findings.exit_code();
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  try {
    return argc == 2 ? penstock::run(argv[1]) : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 3;
  }
}
