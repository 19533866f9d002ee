#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "penstock/gate/gate_linear.hpp"
#include "penstock/gate/planner.hpp"

namespace penstock::cli {

/// What `bench gate` measures.
struct GateBenchOptions {
  std::vector<std::string> shapes{"2816x8192", "6144x16384"};
  std::vector<std::int64_t> tokens{64, 1024, 4096, 16384};
  std::vector<std::string> ways;  ///< Empty: all that this machine can do.
  std::string device = "cpu";
  std::string arrival = "whole";
  int ranks = 0;  ///< 0: one a GPU; 2 on the CPU.
  int layers = 12;
  int work = 0;  ///< Products of the gate's size before each gate, as the rest of a layer.
  int repeat = 9;
  std::int64_t max_temp_mib = 0;  ///< 0: no limit.
  bool only_plan = false;
  bool measures_rates = false;  ///< With only_plan: instead of a typical machine's.
  std::vector<int> plan_ranks;  ///< With only_plan: for how many ranks; empty: `ranks`.
};

/// One way to compute a chain of gates, and what came of it.
struct GateWay {
  std::string name;
  GateStrategy strategy = GateStrategy::Replicated;
  GateRounding rounding = GateRounding::Once;
  bool overlaps_blocks = true;       ///< Where the device can.
  bool uses_one_block = false;       ///< Exchanges all tokens at once, as the naive form does.
  bool uses_identical_rows = false;  ///< All rows are equal on all ranks.
};

struct GateResult {
  std::string name;
  std::string error;  ///< Why there is no figure; then the rest means nothing.
  double median_ms = 0;
  double min_ms = 0;
  double spread_ms = 0;
  std::size_t temp_bytes = 0;            ///< What the layers reserve.
  std::size_t peak_workspace_bytes = 0;  ///< Of it, the most that calls have used.
  std::size_t resident_bytes = 0;
  std::int64_t transfers = 0;
  double relative_error = 0;  ///< Root mean square, of a sample, against float64.
};

/// Sizes of one measurement.
struct GateBenchCase {
  GateShape shape;
  std::int64_t tokens = 0;
  int ranks = 1;
};

/// What the planner gets to know about this machine: measured once over the ranks of a bench.
GateRates measure_rates(const GateBenchOptions& options);

/// Measures the ways in turns, so that what disturbs one disturbs all, in an order that changes from
/// round to round, each after a run of its own that is not measured. Every rank is a thread, on
/// CUDA each with a GPU of its own.
std::vector<GateResult> measure_gates(const GateBenchCase& bench_case,
                                      const std::vector<GateWay>& ways,
                                      const GateBenchOptions& options, const GateRates& rates);

}  // namespace penstock::cli
