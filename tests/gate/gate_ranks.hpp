#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/gate/gate_linear.hpp"
#include "support/gate_oracle.hpp"

namespace penstock {

inline GateOptions with(GateStrategy strategy) {
  GateOptions options;
  options.strategy = strategy;
  return options;
}

/// One gate and what every rank feeds it.
struct GateProblem {
  GateShape shape;
  std::int64_t attn_width = 0;
  std::vector<std::int64_t> tokens;  ///< Of each rank.
  std::vector<BF16> weight;
  std::vector<std::vector<BF16>> x;
  std::vector<std::vector<BF16>> attn_out;

  int ranks() const { return static_cast<int>(tokens.size()); }
};

inline GateProblem make_problem(GateShape shape, std::vector<std::int64_t> tokens,
                                std::int64_t head_width = 1, std::uint32_t seed = 7) {
  GateProblem problem{
      .shape = shape,
      .attn_width = shape.output_size * head_width,
      .tokens = std::move(tokens),
      .weight = oracle::normal_bf16(shape.output_size * shape.hidden_size, 0.05, seed),
      .x = {},
      .attn_out = {}};
  for (const std::int64_t count : problem.tokens) {
    problem.x.push_back(oracle::normal_bf16(count * shape.hidden_size, 1.0, ++seed));
    problem.attn_out.push_back(oracle::normal_bf16(count * problem.attn_width, 1.0, ++seed));
  }
  return problem;
}

/// Makes every rank's rows equal to rank 0's.
inline void make_identical(GateProblem& problem) {
  for (auto& x : problem.x) x = problem.x[0];
  for (auto& attn_out : problem.attn_out) attn_out = problem.attn_out[0];
}

inline GateCall call_of(const GateProblem& problem, int rank, std::span<BF16> out) {
  const auto r = static_cast<std::size_t>(rank);
  GateCall call;
  call.tokens = problem.tokens[r];
  call.attn_width = problem.attn_width;
  call.x = problem.x[r];
  call.attn_out = problem.attn_out[r];
  call.out = out;
  return call;
}

/// Changes to the ordinary call of a rank.
using CallEdit = std::function<void(GateCall& call, int rank)>;

/// The results of every rank, each rank a thread. The weight is given whole.
inline std::vector<std::vector<BF16>> run_ranks(const GateProblem& problem,
                                                const GateOptions& options,
                                                const CallEdit& edit = {}) {
  std::vector<std::vector<BF16>> out(problem.tokens.size());
  run_thread_group(problem.ranks(), [&](Communicator& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    out[r].resize(problem.attn_out[r].size());
    GateLinear gate(problem.shape, problem.weight, WeightPart::Full, &comm, options);
    GateCall call = call_of(problem, comm.rank(), out[r]);
    call.token_counts = problem.tokens;
    if (edit) edit(call, comm.rank());
    gate.forward(call);
    const auto longest = *std::max_element(problem.tokens.begin(), problem.tokens.end());
    EXPECT_LE(gate.peak_workspace_bytes(), gate.workspace_bytes(longest, GateStrategy::Auto));
  });
  return out;
}

/// The results without any sharding.
inline std::vector<std::vector<BF16>> run_alone(const GateProblem& problem,
                                                GateRounding rounding = GateRounding::Once) {
  GateOptions options;
  options.rounding = rounding;
  GateLinear gate(problem.shape, problem.weight, WeightPart::Full, nullptr, options);
  std::vector<std::vector<BF16>> out(problem.tokens.size());
  for (int rank = 0; rank < problem.ranks(); ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    out[r].resize(problem.attn_out[r].size());
    gate.forward(call_of(problem, rank, out[r]));
  }
  return out;
}

/// The error that `body` throws.
inline std::pair<ErrorCode, std::string> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::Internal, "no error"};
}

}  // namespace penstock
