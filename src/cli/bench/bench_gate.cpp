#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <string>

#include "cli/bench/bench.hpp"
#include "cli/bench/gate_measurement.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/version.hpp"
#include "penstock/gate/gate_rates.hpp"

namespace penstock::cli {
namespace {

/// "2816x8192", hidden size first.
GateShape parse_shape(const std::string& text) {
  GateShape shape;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, shape.hidden_size);
  bool is_valid = first.ec == std::errc() && first.ptr != end && *first.ptr == 'x';
  if (is_valid) {
    const auto second = std::from_chars(first.ptr + 1, end, shape.output_size);
    is_valid = second.ec == std::errc() && second.ptr == end;
  }
  if (!is_valid || shape.hidden_size < 1 || shape.output_size < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("bench gate: shape is {}, needs HIDDENxOUTPUT, as 2816x8192", text));
  }
  return shape;
}

std::vector<GateWay> all_ways() {
  return {{.name = "replicated"},
          {.name = "three_op", .rounding = GateRounding::ThreeTimes},
          {.name = "auto", .strategy = GateStrategy::Auto},
          {.name = "weight_gather", .strategy = GateStrategy::WeightGather},
          {.name = "n_shard", .strategy = GateStrategy::NShard},
          {.name = "k_shard", .strategy = GateStrategy::KShard},
          {.name = "k_shard_in_turn", .strategy = GateStrategy::KShard, .overlaps_blocks = false},
          // All tokens at once, then a sigmoid and a multiplication of their own.
          {.name = "k_shard_naive",
           .strategy = GateStrategy::KShard,
           .rounding = GateRounding::ThreeTimes,
           .overlaps_blocks = false,
           .uses_one_block = true},
          {.name = "identical_rows",
           .strategy = GateStrategy::IdenticalRows,
           .uses_identical_rows = true},
          {.name = "auto_identical", .strategy = GateStrategy::Auto, .uses_identical_rows = true}};
}

std::vector<GateWay> chosen_ways(const std::vector<std::string>& names) {
  auto all = all_ways();
  if (names.empty()) return all;
  std::vector<GateWay> chosen{all.front()};  // everything is compared with replicated
  for (const std::string& name : names) {
    const auto found =
        std::ranges::find_if(all, [&](const GateWay& way) { return way.name == name; });
    if (found == all.end()) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("bench gate: there is no way \"{}\"", name));
    }
    if (found != all.begin()) chosen.push_back(*found);
  }
  return chosen;
}

/// Every shape with every number of tokens.
std::vector<GateBenchCase> cases_of(const GateBenchOptions& options, int ranks) {
  std::vector<GateBenchCase> cases;
  for (const std::string& shape : options.shapes) {
    for (const std::int64_t tokens : options.tokens) {
      cases.push_back({parse_shape(shape), tokens, ranks});
    }
  }
  return cases;
}

std::string plan_text(const GateBenchCase& bench_case, const GateBenchOptions& options,
                      const GateRates& rates) {
  const GatePlanInput input{.shape = bench_case.shape,
                            .ranks = bench_case.ranks,
                            .tokens = bench_case.tokens,
                            .identical_tokens = bench_case.tokens,
                            .rates = rates,
                            .overlaps_blocks = options.device == "cuda"};
  return fmt::format("hidden {} output {} ranks {} tokens {}\n{}\n", bench_case.shape.hidden_size,
                     bench_case.shape.output_size, bench_case.ranks, bench_case.tokens,
                     to_string(plan_gate(input)));
}

/// The planner's table for every case that was asked for; nothing if one of them has no plan.
void print_plans(const GateBenchOptions& options) {
  const DeviceKind device = options.device == "cuda" ? DeviceKind::Cuda : DeviceKind::Cpu;
  const GateRates rates =
      options.measures_rates ? measure_rates(options) : typical_gate_rates(device);
  std::string text =
      fmt::format("{}: {}\n\n",
                  options.measures_rates ? fmt::format("measured over {} ranks", options.ranks)
                                         : fmt::format("typical of {}", options.device),
                  to_string(rates));
  const auto ranks = options.plan_ranks.empty() ? std::vector{options.ranks} : options.plan_ranks;
  for (const int count : ranks) {
    for (const auto& bench_case : cases_of(options, count)) {
      text += plan_text(bench_case, options, rates);
    }
  }
  fmt::print("{}", text);
}

void print_result(const GateBenchCase& bench_case, const GateBenchOptions& options,
                  const GateResult& result, double replicated_ms) {
  nlohmann::ordered_json line{{"bench", "gate"},
                              {"device", options.device},
                              {"arrival", options.arrival},
                              {"hidden", bench_case.shape.hidden_size},
                              {"output", bench_case.shape.output_size},
                              {"ranks", bench_case.ranks},
                              {"tokens", bench_case.tokens},
                              {"layers", options.layers},
                              {"work", options.work},
                              {"way", result.name}};
  if (!result.error.empty()) {
    line["error"] = result.error;
  } else {
    line["ms_per_layer"] = result.median_ms;
    line["min_ms"] = result.min_ms;
    line["ratio_to_replicated"] = result.median_ms / replicated_ms;
    line["temp_bytes"] = result.temp_bytes;
    line["peak_workspace_bytes"] = result.peak_workspace_bytes;
    line["resident_bytes_per_layer"] = result.resident_bytes;
    line["weights_moved"] = result.transfers;
    line["spread_ms"] = result.spread_ms;
    line["relative_error"] = result.relative_error;
  }
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

/// Tokens, ranks and shapes, before anything is measured.
void check_cases(const GateBenchOptions& options) {
  const int fewest = options.only_plan ? 0 : 1;
  for (const std::int64_t tokens : options.tokens) {
    expects(tokens >= fewest,
            fmt::format("bench gate: --tokens is {}, needs at least {}", tokens, fewest));
  }
  expects(options.ranks >= 1,
          fmt::format("bench gate: --ranks is {}, needs at least 1", options.ranks));
  for (const int ranks : options.plan_ranks) {
    expects(ranks >= 1, fmt::format("bench gate: --plan-ranks is {}, needs at least 1", ranks));
  }
  for (const std::string& shape : options.shapes) parse_shape(shape);
}

void check(const GateBenchOptions& options) {
  expects(options.device == "cpu" || options.device == "cuda",
          "bench gate: --device needs cpu or cuda");
  expects(options.arrival == "whole" || options.arrival == "pieces",
          "bench gate: --arrival needs whole or pieces");
  expects(options.layers >= 1 && options.repeat >= 1,
          "bench gate: --layers and --repeat need at least 1");
  expects(options.work >= 0 && options.max_temp_mib >= 0,
          "bench gate: --work and --max-temp-mib need at least 0");
  expects(options.only_plan || (!options.measures_rates && options.plan_ranks.empty()),
          "bench gate: --measure and --plan-ranks need --plan");
  check_cases(options);
  const bool runs = !options.only_plan || options.measures_rates;
  if (options.device == "cuda" && runs && cuda_device_count() < options.ranks) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("bench gate: --ranks {} needs as many GPUs, {} are here", options.ranks,
                            cuda_device_count()));
  }
}

int run_bench(GateBenchOptions options) {
  if (options.ranks == 0) {
    options.ranks = options.device == "cuda" ? std::max(1, cuda_device_count()) : 2;
  }
  check(options);
  const auto ways = chosen_ways(options.ways);
  if (options.only_plan) {
    print_plans(options);
    return 0;
  }
  const GateRates rates = measure_rates(options);
  for (const auto& bench_case : cases_of(options, options.ranks)) {
    const auto results = measure_gates(bench_case, ways, options, rates);
    for (const auto& result : results) {
      print_result(bench_case, options, result, results.front().median_ms);
    }
  }
  return 0;
}

}  // namespace

void add_bench_gate(CLI::App& bench, Action& action) {
  CLI::App* gate = bench.add_subcommand("gate", "The gate projection, sharded in every way");
  auto options = std::make_shared<GateBenchOptions>();
  gate->add_option("--shape", options->shapes, "HIDDENxOUTPUT, several allowed")
      ->delimiter(',')
      ->capture_default_str();
  gate->add_option("--tokens", options->tokens, "Tokens of a rank, several allowed")
      ->delimiter(',')
      ->capture_default_str();
  gate->add_option("--way", options->ways,
                   "replicated, three_op, auto, weight_gather, n_shard, k_shard, "
                   "k_shard_in_turn, k_shard_naive, "
                   "identical_rows, auto_identical; several allowed (all)")
      ->delimiter(',');
  gate->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  gate->add_option("--arrival", options->arrival, "Of pulled weights: whole or pieces")
      ->capture_default_str();
  gate->add_option("--ranks", options->ranks,
                   "Threads, on cuda each with its own GPU (all GPUs; 2 on the CPU)");
  gate->add_option("--layers", options->layers, "Length of the chain")->capture_default_str();
  gate->add_option("--max-temp-mib", options->max_temp_mib,
                   "Limit on a way's temporary memory, in MiB; 0: none")
      ->capture_default_str();
  gate->add_option("--work", options->work,
                   "Products of the gate's size before each gate, as the rest of a layer")
      ->capture_default_str();
  gate->add_option("--repeat", options->repeat, "Measurements of each way")->capture_default_str();
  gate->add_flag("--plan", options->only_plan, "Print what the planner predicts, and stop");
  gate->add_flag("--measure", options->measures_rates,
                 "With --plan: from this machine's rates, measured, not a typical machine's");
  gate->add_option("--plan-ranks", options->plan_ranks,
                   "With --plan: for how many ranks, several allowed (--ranks)")
      ->delimiter(',');
  gate->footer(
      "One JSON line for each way, or with --plan the planner's table.\n"
      "Example: penstock bench gate --shape 2816x8192 --tokens 64 --layers 2 --repeat 3");
  gate->callback([&action, options] { action = [options] { return run_bench(*options); }; });
}

}  // namespace penstock::cli
