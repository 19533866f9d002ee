#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "cli/run/agree.hpp"
#include "cli/run/engram_run.hpp"
#include "cli/run/gate_run.hpp"
#include "cli/run/layer_output.hpp"
#include "cli/run/model_options.hpp"
#include "cli/run/report.hpp"
#include "cli/run/run_arguments.hpp"
#include "cli/run/run_options.hpp"
#include "cli/run/run_world.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

bool is_verified(const json& report) {
  for (const json& rank : report["ranks"]) {
    for (const json& layer : rank["layers"]) {
      if (layer.contains("verify") && !layer["verify"]["ok"].get<bool>()) return false;
    }
  }
  return true;
}

/// Gathers every rank's part; rank 0 gets the whole report, the others nothing.
json gather_ranks(Communicator& world, const json& mine) {
  const std::string text = mine.dump();
  const auto parts = world.all_gather_object(std::as_bytes(std::span(text)));
  json ranks = json::array();
  if (world.rank() != 0) return ranks;
  for (const auto& part : parts) {
    const auto* begin = reinterpret_cast<const char*>(part.data());
    ranks.push_back(json::parse(begin, begin + part.size()));
  }
  return ranks;
}

/// One rank; rank 0 prints for all.
int run_rank(Communicator& world, const RunOptions& options, bool is_json) {
  if (options.engine == "nccl" && options.device != DeviceKind::Cuda) {
    throw Error(ErrorCode::InvalidArgument,
                "run: --engine nccl moves rows between GPUs, needed: --device cuda");
  }
  agree(world, settings_of(options));
  const ModelDir model = ModelDir::open(options.model);
  const bool has_engram = model.config().engram.has_value();
  check_model_options(options, model);
  if (!options.out.empty()) make_output_directory(world, options.out);
  const json ranks = gather_ranks(
      world, has_engram ? run_engram(options, model, world) : run_gates(options, model, world));
  if (world.rank() != 0) return kExitOk;
  json report = {{"engine", options.engine == "nccl" ? "nccl" : world.engine()},
                 {"parallel", to_string(options.parallel)},
                 {"ranks", ranks}};
  if (has_engram) {
    const NodeMemory memory = add_up_memory(report);
    report["memory"] = {{"growth_bytes", memory.growth_bytes},
                        {"table_bytes", memory.table_bytes},
                        {"staging_bytes", memory.staging_bytes}};
  }
  const std::string text = is_json      ? report.dump() + "\n"
                           : has_engram ? describe_engram_run(report)
                                        : describe_gate_run(report);
  std::fputs(text.c_str(), stdout);
  return is_verified(report) ? kExitOk : kExitVerificationFailed;
}

constexpr const char* kForTables = "Tables only (Engram)";
constexpr const char* kForGates = "Gates only";

void add_parallel_options(CLI::App& command, RunOptions& options) {
  command.add_option("--tp", options.parallel.tp, "Tensor-parallel ranks")
      ->check(CLI::PositiveNumber);
  command.add_option("--dp", options.parallel.dp, "Data-parallel replicas")
      ->check(CLI::PositiveNumber);
  command.add_option("--pp", options.parallel.pp, "Pipeline stages")->check(CLI::PositiveNumber);
  command.add_option("--pcp", options.parallel.pcp, "Prefill context parallel ranks")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--external-dp", options.parallel.external_dp, "Replicas started by themselves")
      ->check(CLI::PositiveNumber);
  command.add_option("--pp-cuts", options.pp_cuts, "First layer of each later stage")
      ->delimiter(',');
  command
      .add_flag("--sp", options.is_sequence_parallel,
                "Sequence parallel: each tp rank keeps a chunk")
      ->group(kForTables);
  command.add_flag("--dp-shard", options.shards_over_dp, "Spread private tables over dp ranks too")
      ->group(kForTables);
}

void add_options(CLI::App& command, RunArguments& arguments) {
  RunOptions& options = arguments.options;
  command.add_option("DIR", options.model, "Model directory")->required();
  command.add_option("--tokens", options.tokens, "Token file: safetensors, JSON or raw int32")
      ->required();
  command.add_option("--tensor", options.tensor, "Tensor of a safetensors token file");
  command.add_option("--requests", options.requests, "Cut one stream into that many requests")
      ->check(CLI::PositiveNumber);
  command.add_option("--chunk", options.chunk, "Tokens of a request in one prefill step (512)")
      ->check(CLI::PositiveNumber);
  command.add_option("--decode", options.decode, "Last tokens of a request fed one by one (8)")
      ->check(CLI::NonNegativeNumber);
  add_parallel_options(command, options);
  command.add_option("--placement", arguments.placement, "Where rows live")
      ->check(CLI::IsMember({"auto", "device", "peer", "host", "host_shared", "file"}))
      ->group(kForTables);
  command.add_option("--backing", arguments.backing, "What the memory of host_shared is made of")
      ->check(CLI::IsMember({"auto", "cumem", "hugetlb", "memfd"}))
      ->group(kForTables);
  command.add_option("--reader", arguments.reader, "How rows are read")
      ->check(CLI::IsMember({"direct"}));
  command
      .add_option("--strategy", options.strategy,
                  "How gates are computed (auto, or replicated with PENSTOCK_GATE_PCP_SHARD=0)")
      ->check(CLI::IsMember(
          {"auto", "replicated", "k_shard", "n_shard", "weight_gather", "identical_rows"}))
      ->group(kForGates);
  command.add_flag("--processes", options.uses_processes, "Each rank a process, not a thread");
  // Given by this command to the ranks that it starts.
  command.add_option("--echo-exit-code", options.echo_exit_code)->group("");
  command.add_option("--engine", options.engine, "How ranks communicate")
      ->check(CLI::IsMember({"threads", "mpi", "nccl"}));
  command.add_option("--deadline", arguments.deadline_seconds,
                     "Seconds after which a silent rank is given up (60)");
  command.add_option("--device", arguments.device, "Where the work runs")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--layers", options.layers, "Serve only these layers")->delimiter(',');
  command.add_option("--rows", arguments.rows, "random:SEED makes rows up instead of reading them")
      ->group(kForTables);
  command.add_option("--token-map", options.token_map,
                     "tokenizer.json, saved token map, or identity (the model's tokenizer)");
  command.add_option("--inputs", options.inputs,
                     "Safetensors with hidden.<layer>, or x.<layer> and attn_out.<layer>");
  command
      .add_option("--stand-in", options.stand_in,
                  "Matrix products that stand in for each decoder layer before ours (1)")
      ->check(CLI::NonNegativeNumber)
      ->group(kForTables);
  command.add_flag("--verify", options.verifies, "Compare with the unsharded layer");
  command
      .add_flag("--allow-fallback", options.may_fall_back,
                "Take another placement if this one cannot be had")
      ->group(kForTables);
  command.add_option("--out", options.out, "Write layer<ID>.safetensors here");
  command.add_flag("--json", arguments.is_json, "Report as JSON");
}

}  // namespace

void add_run_command(CLI::App& app, const std::vector<std::string>& command_line, Action& action) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand(
      "run", "Serve every layer of a model that Penstock knows, on real tokens.");
  add_options(*command, *arguments);
  command->footer("Example: penstock run demo --tokens prompts.json --tp 2 --processes --verify");
  command->callback([arguments, command_line, &action] {
    action = [arguments, command_line] {
      const RunOptions options = check_arguments(*arguments);
      return run_world(options, command_line, [&](Communicator& world) {
        return run_rank(world, options, arguments->is_json);
      });
    };
  });
}

}  // namespace penstock::cli
