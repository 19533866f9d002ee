#include "checkpoint/synthetic_config.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <set>

#include "penstock/checkpoint/bucket_primes.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

using nlohmann::ordered_json;

void check_between(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  expects(value >= low && value <= high,
          fmt::format("make_synthetic_model: {} is {}, needed {} to {}", name, value, low, high));
}

void check_common(const SyntheticModelOptions& options) {
  expects(!options.layers.empty(), "make_synthetic_model: layers is empty, needed one layer id");
  const std::set<int> different(options.layers.begin(), options.layers.end());
  expects(different.size() == options.layers.size(),
          "make_synthetic_model: layers names a layer twice");
  for (const int layer : options.layers) check_between("a layer id", layer, 0, 9'999);
  check_between("num_hidden_layers", options.num_hidden_layers, 1, 10'000);
  check_between("hidden_size", options.hidden_size, 1, 1 << 20);
  check_between("vocab_size", options.vocab_size, 1, std::numeric_limits<std::int32_t>::max());
}

void check_engram(const SyntheticModelOptions& options) {
  constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
  check_between("hc_mult", options.hc_mult, 1, 64);
  check_between("max_ngram_size", options.max_ngram_size, 2, 16);
  check_between("num_heads", options.num_heads, 1, 1024);
  check_between("head_dim", options.head_dim, 32, 1 << 16);
  expects(options.head_dim % 32 == 0,
          fmt::format("make_synthetic_model: head_dim is {}, needed a multiple of 32",
                      options.head_dim));
  check_between("engram_vocab_size", options.engram_vocab_size, 2, kMaxInt32 / 2);
  check_between("compressed_vocab_size", options.compressed_vocab_size, 1, kMaxInt32);
  check_between("pad_token_id", options.pad_token_id, 0, options.vocab_size - 1);
}

std::int64_t sum(const std::vector<std::int64_t>& numbers) {
  std::int64_t total = 0;
  for (const std::int64_t number : numbers) total += number;
  return total;
}

/// Rows of each layer's table: the sum of its primes.
std::vector<std::int64_t> table_rows(const SyntheticModelOptions& options) {
  const EngramConfig config{.layer_ids = options.layers,
                            .num_embeddings = {},
                            .max_ngram_size = options.max_ngram_size,
                            .num_heads = options.num_heads,
                            .head_dim = options.head_dim,
                            .vocab_size = options.engram_vocab_size,
                            .pad_token_id = options.pad_token_id,
                            .compressed_vocab_size = options.compressed_vocab_size};
  // Primes only grow, so this bound tells before the search for them.
  check_between("engram_vocab_size times the columns of a layer",
                options.engram_vocab_size * config.num_columns(), 1,
                std::numeric_limits<std::int32_t>::max());
  std::vector<std::int64_t> rows;
  for (const auto& primes : bucket_primes(config)) {
    rows.push_back(sum(primes));
    check_between("the number of rows of a table", rows.back(), 1,
                  std::numeric_limits<std::int32_t>::max());
  }
  return rows;
}

std::int64_t num_hidden_layers(const SyntheticModelOptions& options) {
  return std::max<std::int64_t>(options.num_hidden_layers, std::ranges::max(options.layers) + 1);
}

ordered_json deepseek_config(const SyntheticModelOptions& options) {
  check_engram(options);
  ordered_json out{{"architectures", {"DeepseekV41ForCausalLM"}}, {"model_type", "deepseek_v41"}};
  if (options.use_quantised_wkv) {
    out["quantization_config"] = {{"quant_method", "fp8"},
                                  {"fmt", "e4m3"},
                                  {"scale_fmt", "ue8m0"},
                                  {"activation_scheme", "dynamic"},
                                  {"weight_block_size", {32, 32}}};
  }
  out["text_config"] = {{"vocab_size", options.vocab_size},
                        {"hidden_size", options.hidden_size},
                        {"num_hidden_layers", num_hidden_layers(options)},
                        {"hc_mult", options.hc_mult},
                        {"rms_norm_eps", 1e-20},
                        {"dtype", "bfloat16"},
                        {"bos_token_id", 0},
                        {"eos_token_id", 1},
                        {"pad_token_id", options.pad_token_id},
                        {"engram_layer_ids", options.layers},
                        {"engram_num_embeddings", table_rows(options)},
                        {"engram_max_ngram_size", options.max_ngram_size},
                        {"engram_n_heads", options.num_heads},
                        {"engram_head_dim", options.head_dim},
                        {"engram_vocab_size", options.engram_vocab_size},
                        {"engram_pad_token_id", options.pad_token_id},
                        {"engram_compressed_vocab_size", options.compressed_vocab_size}};
  return out;
}

ordered_json hy_v4_config(const SyntheticModelOptions& options) {
  check_between("num_attention_heads", options.num_attention_heads, 1, 1 << 12);
  check_between("v_head_dim", options.v_head_dim, 1, 1 << 12);
  check_between("num_draft_gates", options.num_draft_gates, 0, 100);
  const bool is_headwise = options.gating == GatingType::Headwise;
  return {{"architectures", {"HYV4ForCausalLM"}},
          {"model_type", "hy_v4"},
          {"vocab_size", options.vocab_size},
          {"hidden_size", options.hidden_size},
          {"num_hidden_layers", num_hidden_layers(options)},
          {"num_nextn_predict_layers", std::max(1, options.num_draft_gates)},
          {"num_attention_heads", options.num_attention_heads},
          {"num_key_value_heads", options.num_attention_heads},
          {"v_head_dim", options.v_head_dim},
          {"rms_norm_eps", 1e-5},
          {"dtype", "bfloat16"},
          {"gated_mla", true},
          {"gating_type", is_headwise ? "headwise" : "elementwise"}};
}

}  // namespace

std::string synthetic_config(const SyntheticModelOptions& options) {
  check_common(options);
  const bool has_engram = options.family == ModelFamily::DeepSeekV41Flash;
  return (has_engram ? deepseek_config(options) : hy_v4_config(options)).dump(2) + "\n";
}

}  // namespace penstock::detail
