#pragma once

#include <algorithm>
#include <cstdint>

namespace penstock::detail {

/// Up to here a read is one of few rows: 170 tokens of 24 columns.
inline constexpr std::int64_t kFewRows = 4096;

/// What the choice of a grid depends on.
struct GatherProblem {
  std::int64_t rows = 0;  ///< Staging rows of the largest read that the launch serves.
  bool in_host_memory = false;
  bool is_in_order = false;      ///< Rows come in the order of their places in the table.
  std::int64_t table_bytes = 0;  ///< Of the shard that is read; counts where rows come in order.
  bool is_spread = false;        ///< Over several GPUs.
  bool writes_bf16 = false;      ///< Else row records are passed on.
  int multiprocessors = 0;
  int requested_blocks = 0;  ///< 0: choose.
};

/// How a read is spread over the GPU.
struct GatherPlan {
  int blocks = 0;
  int threads = 0;        ///< Of a block.
  int rows_per_warp = 0;  ///< Rows that a warp has in flight: 1, 2, 4 or 8.
};

/// How much of a table lies between the first and the last row that a read in order has in flight.
constexpr std::int64_t bytes_in_flight(const GatherProblem& problem, const GatherPlan& plan) {
  const std::int64_t rows = std::int64_t{plan.blocks} * plan.threads / 32 * plan.rows_per_warp;
  return problem.table_bytes / problem.rows * rows;
}

/// Chooses the grid. A pure function, so that it is tested without a GPU.
///
/// Source: docs/measurements/2026-11-30-h200.md, the sweeps. A few rows are bound by latency: one
/// row per warp and many small blocks. Many rows of a host table are bound by address translation,
/// which two big blocks saturate; they take the fewest multiprocessors from the model's kernels. In
/// order, rows of a large table lie far apart: then fewer in flight share more translations.
/// Many rows of GPU memory are bound by the reads in flight: all multiprocessors, several rows per
/// warp, fewer of them where the rows that are written take registers too.
constexpr GatherPlan plan_gather(const GatherProblem& problem) {
  constexpr std::int64_t kMostBytesInFlight = std::int64_t{40} << 20;
  constexpr GatherPlan kFew{0, 64, 1};
  constexpr GatherPlan kHost{2, 1024, 4};
  GatherPlan plan = kFew;
  std::int64_t cap = kFewRows;
  if (problem.rows > kFewRows && problem.in_host_memory) {
    plan = kHost;
    cap = kHost.blocks;
    if (problem.is_in_order && bytes_in_flight(problem, kHost) > kMostBytesInFlight) {
      plan.rows_per_warp = kHost.rows_per_warp / 2;
    }
  } else if (problem.rows > kFewRows && problem.is_spread) {
    plan = {0, 128, problem.writes_bf16 ? 8 : 4};
    cap = std::int64_t{16} * problem.multiprocessors;
  } else if (problem.rows > kFewRows) {
    plan = {0, 256, problem.writes_bf16 ? 2 : 4};
    cap = std::int64_t{8} * problem.multiprocessors;
  }
  if (problem.requested_blocks > 0) cap = problem.requested_blocks;
  const std::int64_t rows_per_block = std::int64_t{plan.threads} / 32 * plan.rows_per_warp;
  const std::int64_t needed = (problem.rows + rows_per_block - 1) / rows_per_block;
  plan.blocks = static_cast<int>(std::clamp(needed, std::int64_t{1}, cap));
  return plan;
}

}  // namespace penstock::detail
