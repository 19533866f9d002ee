#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <string>

#include "cli/byte_count.hpp"
#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "cli/inspect/model_report.hpp"
#include "penstock/gate/strategy.hpp"

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InspectOptions {
  std::string directory;
  bool is_json = false;
};

/// Bytes of the table of a layer, values and scales.
std::uint64_t table_bytes(const EngramReport& layer) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : layer.tensors) {
    if (tensor.part.starts_with("embed.")) bytes += tensor.info.bytes;
  }
  return bytes;
}

Json to_json(const TensorReport& tensor) {
  return {{"name", tensor.info.name},
          {"dtype", to_string(tensor.info.dtype)},
          {"shape", tensor.info.shape},
          {"bytes", tensor.info.bytes},
          {"file", tensor.file}};
}

Json to_json(const EngramConfig& config, const std::vector<EngramReport>& layers) {
  Json list = Json::array();
  for (const auto& layer : layers) {
    Json tensors = Json::object();
    for (const auto& tensor : layer.tensors) tensors[tensor.part] = to_json(tensor);
    list.push_back({{"layer", layer.layer_id},
                    {"rows", layer.rows},
                    {"sum_of_primes", layer.sum_of_primes},
                    {"table_bytes", table_bytes(layer)},
                    {"tensors", std::move(tensors)}});
  }
  return {{"max_ngram_size", config.max_ngram_size},
          {"heads", config.num_heads},
          {"columns", config.num_columns()},
          {"head_dim", config.head_dim},
          {"row_bytes", config.head_dim + config.head_dim / 32},
          {"vocab_size", config.vocab_size},
          {"compressed_vocab_size", config.compressed_vocab_size},
          {"layers", std::move(list)}};
}

Json to_json(const GateConfig& config, const std::vector<GateReport>& gates) {
  Json list = Json::array();
  for (const auto& gate : gates) {
    list.push_back({{"layer", gate.layer_id}, {"tensor", to_json(gate.tensor)}});
  }
  return {{"gating", to_string(config.gating)},
          {"heads", config.num_heads},
          {"v_head_dim", config.v_head_dim},
          {"output_size", config.output_size()},
          {"layers", std::move(list)}};
}

void print_json(const ModelReport& report) {
  Json out{{"ok", report.inconsistencies.empty()},
           {"directory", report.directory.string()},
           {"architecture", report.config.architecture},
           {"vocab_size", report.config.vocab_size},
           {"hidden_size", report.config.hidden_size},
           {"hc_mult", report.config.hc_mult},
           {"engram", nullptr},
           {"gates", nullptr},
           {"tokenizer", nullptr}};
  if (report.config.engram) out["engram"] = to_json(*report.config.engram, report.engram);
  if (report.config.gate) out["gates"] = to_json(*report.config.gate, report.gates);
  if (report.tokenizer) {
    out["tokenizer"] = {{"tokens", report.tokenizer->tokens},
                        {"compressed", report.tokenizer->compressed}};
  }
  Json found = Json::array();
  for (const auto& inconsistency : report.inconsistencies) {
    found.push_back({{"id", inconsistency.id}, {"message", inconsistency.message}});
  }
  out["inconsistencies"] = std::move(found);
  fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
}

void print_tensor(const TensorReport& tensor) {
  fmt::print("  {:<20} {:<8} {:<22} {:>10}  {}\n", tensor.part, to_string(tensor.info.dtype),
             fmt::format("[{}]", fmt::join(tensor.info.shape, ", ")), byte_count(tensor.info.bytes),
             tensor.file);
}

void print_engram(const EngramConfig& config, const ModelReport& report) {
  fmt::print(
      "Engram        {} layers, orders 2 to {} of {} heads: {} columns; rows of {} elements, "
      "{} bytes\n",
      config.layer_ids.size(), config.max_ngram_size, config.num_heads, config.num_columns(),
      config.head_dim, config.head_dim + config.head_dim / 32);
  if (report.tokenizer) {
    fmt::print("tokenizer     {} token ids, {} compressed ids\n", report.tokenizer->tokens,
               report.tokenizer->compressed);
  } else {
    fmt::print("tokenizer     none read; config.json says {} compressed ids\n",
               config.compressed_vocab_size);
  }
  for (const auto& layer : report.engram) {
    fmt::print("layer {:<8}{} rows, {}, primes {} to {}\n", layer.layer_id, layer.rows,
               byte_count(table_bytes(layer)), layer.first_prime, layer.last_prime);
    for (const auto& tensor : layer.tensors) print_tensor(tensor);
  }
}

void print_gates(const GateConfig& config, const std::vector<GateReport>& gates) {
  std::uint64_t bytes = 0;
  for (const auto& gate : gates) bytes += gate.tensor.info.bytes;
  fmt::print("gates         {} layers, {}, {} outputs, {}\n", gates.size(),
             to_string(config.gating), config.output_size(), byte_count(bytes));
  for (const auto& gate : gates) {
    fmt::print("layer {}\n", gate.layer_id);
    print_tensor(gate.tensor);
  }
}

void print_text(const ModelReport& report) {
  const ModelConfig& config = report.config;
  fmt::print("model         {}\n", report.directory.string());
  fmt::print("architecture  {}, vocabulary {}, hidden size {}, {} copies of the residual stream\n",
             config.architecture.empty() ? "not named" : config.architecture, config.vocab_size,
             config.hidden_size, config.hc_mult);
  if (config.engram) print_engram(*config.engram, report);
  if (config.gate) print_gates(*config.gate, report.gates);
  if (!config.engram && !config.gate) fmt::print("nothing to serve: no Engram layer, no gate\n");
  for (const auto& found : report.inconsistencies) {
    fmt::print("inconsistent  {}: {}\n", found.id, found.message);
  }
  if (report.inconsistencies.empty()) fmt::print("consistent\n");
}

int inspect(const InspectOptions& options) {
  const ModelReport report = inspect_model(options.directory);
  if (options.is_json) {
    print_json(report);
  } else {
    print_text(report);
  }
  return report.inconsistencies.empty() ? kExitOk : kExitBadInput;
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show what a model has for us, and where it contradicts itself");
  command->add_option("DIR", options->directory, "A model directory")->required();
  command->add_flag("--json", options->is_json, "Answer in JSON");
  command->footer("Exits with 3 if it contradicts itself. Example: penstock inspect demo");
  command->callback([options, &action] { action = [options] { return inspect(*options); }; });
}

}  // namespace penstock::cli
