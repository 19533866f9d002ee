#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/byte_count.hpp"
#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "cli/progress.hpp"
#include "penstock/checkpoint/synthetic_model.hpp"
#include "penstock/engram/token_map.hpp"

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;

/// What the command line says; what it does not say comes from the family.
struct MakeModelOptions {
  std::string directory;
  std::string like = "deepseek-v4.1-flash";
  bool use_released_sizes = false;
  bool use_holes = false;
  bool use_single_file = false;
  bool use_bf16 = false;
  bool is_json = false;
  std::string tokenizer;
  std::string gating;
  std::uint64_t seed = 1;
  std::vector<int> layers;
  std::optional<std::int64_t> hidden_size;
  std::optional<std::int64_t> vocab_size;
  std::optional<std::int64_t> engram_vocab_size;
  std::optional<std::int64_t> compressed_vocab_size;
  std::optional<int> heads;
  std::optional<int> v_head_dim;
  std::optional<int> max_ngram_size;
  std::optional<int> head_dim;
  std::optional<int> hc_mult;
};

template <typename To, typename From>
void override_with(To& value, const std::optional<From>& given) {
  if (given) value = *given;
}

/// Errors: a usage error for an option that the family has no use for.
void check_family(const CLI::App& command, bool has_engram) {
  const std::vector<const char*> foreign = has_engram ? std::vector{"--v-head-dim", "--gating"}
                                                      : std::vector{"--engram-vocab-size",
                                                                    "--compressed-vocab-size",
                                                                    "--max-ngram",
                                                                    "--head-dim",
                                                                    "--hc",
                                                                    "--bf16",
                                                                    "--sparse"};
  for (const char* name : foreign) {
    if (command.count(name) == 0) continue;
    throw CLI::ValidationError(
        name, fmt::format("only for a model with {}", has_engram ? "gates" : "Engram layers"));
  }
}

SyntheticModelOptions model_options(const MakeModelOptions& given) {
  const ModelFamily family = parse_model_family(given.like).value();
  SyntheticModelOptions out =
      given.use_released_sizes ? released_model_options(family) : demo_model_options(family);
  const bool has_engram = family == ModelFamily::DeepSeekV41Flash;
  out.seed = given.seed;
  out.use_holes = given.use_holes;
  out.use_shards = !given.use_single_file;
  out.use_quantised_wkv = !given.use_bf16;
  out.tokenizer = given.tokenizer;
  if (!given.layers.empty()) out.layers = given.layers;
  if (given.gating == "headwise") out.gating = GatingType::Headwise;
  override_with(out.hidden_size, given.hidden_size);
  override_with(out.vocab_size, given.vocab_size);
  override_with(out.engram_vocab_size, given.engram_vocab_size);
  override_with(has_engram ? out.num_heads : out.num_attention_heads, given.heads);
  override_with(out.v_head_dim, given.v_head_dim);
  override_with(out.max_ngram_size, given.max_ngram_size);
  override_with(out.head_dim, given.head_dim);
  override_with(out.hc_mult, given.hc_mult);
  if (has_engram && !given.tokenizer.empty() && !given.compressed_vocab_size) {
    // A model is consistent only if this number is the tokenizer's.
    out.compressed_vocab_size = TokenMap::from_tokenizer(given.tokenizer, out.vocab_size).size();
  }
  override_with(out.compressed_vocab_size, given.compressed_vocab_size);
  return out;
}

void print_summary(const MakeModelOptions& given, const SyntheticModelOptions& options,
                   const SyntheticModelSummary& summary) {
  if (given.is_json) {
    const Json answer{{"directory", given.directory},
                      {"like", given.like},
                      {"seed", options.seed},
                      {"layers", options.layers},
                      {"tensor_bytes", summary.tensor_bytes},
                      {"files", summary.files}};
    fmt::print("{}\n", answer.dump(2, ' ', false, Json::error_handler_t::replace));
    return;
  }
  fmt::print("{}: like {}, layers {}, {} of tensors in {} files\n", given.directory, given.like,
             fmt::join(options.layers, ", "), byte_count(summary.tensor_bytes),
             summary.files.size());
}

int make_model(const MakeModelOptions& given) {
  const SyntheticModelOptions options = model_options(given);
  SyntheticModelSummary summary;
  {
    Progress progress("make-model");
    summary = make_synthetic_model(given.directory, options, [&](const auto& step) {
      progress.report(step.file, step.done_bytes, step.total_bytes);
    });
  }
  print_summary(given, options, summary);
  return kExitOk;
}

void add_options(CLI::App& command, MakeModelOptions& options) {
  command.add_option("DIR", options.directory, "A new or empty directory")->required();
  command.add_option("--like", options.like, "The model whose layout it gets")
      ->check(CLI::IsMember({"deepseek-v4.1-flash", "hy-v4", "hy-v4-preview"}))
      ->capture_default_str();
  command.add_flag("--full", options.use_released_sizes, "The released sizes, not a demo's");
  command.add_option("--seed", options.seed, "All bytes follow from it")->capture_default_str();
  command.add_option("--layers", options.layers, "Layer ids, for example 1,14")->delimiter(',');
  command.add_option("--hidden", options.hidden_size, "Hidden size");
  command.add_option("--heads", options.heads, "Hash heads per order, or attention heads");
  command.add_option("--vocab-size", options.vocab_size, "Token ids of the model");
  command.add_option("--tokenizer", options.tokenizer, "Copied as tokenizer.json; .xz is unpacked");
  command.add_flag("--single-file", options.use_single_file, "One file instead of shards");
  command.add_flag("--json", options.is_json, "Answer in JSON");
  command.add_option("--engram-vocab-size", options.engram_vocab_size, "Base of the primes");
  command.add_option("--compressed-vocab-size", options.compressed_vocab_size,
                     "Compressed ids; from the tokenizer if that is given");
  command.add_option("--max-ngram", options.max_ngram_size, "Longest n-gram");
  command.add_option("--head-dim", options.head_dim, "Elements of a row");
  command.add_option("--hc", options.hc_mult, "Copies of the residual stream");
  command.add_flag("--bf16", options.use_bf16, "Projections in bf16 instead of block fp8");
  command.add_flag("--sparse", options.use_holes, "Tables are holes that take no disk");
  command.add_option("--v-head-dim", options.v_head_dim, "Width of an attention head's output");
  command
      .add_option("--gating", options.gating,
                  "What a row of the gate's weight governs (elementwise)")
      ->check(CLI::IsMember({"elementwise", "headwise"}));
}

}  // namespace

void add_make_model_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<MakeModelOptions>();
  CLI::App* command = app.add_subcommand(
      "make-model", "Write a synthetic checkpoint with the layout of a real one");
  add_options(*command, *options);
  command->footer(
      "Sizes that are not given are a demo's, or with --full the released ones.\n"
      "Example: penstock make-model demo --tokenizer examples/deepseek_v3_tokenizer.json.xz");
  command->callback([command, options, &action] {
    check_family(*command, options->like == to_string(ModelFamily::DeepSeekV41Flash));
    action = [options] { return make_model(*options); };
  });
}

}  // namespace penstock::cli
