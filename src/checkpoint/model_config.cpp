#include "penstock/checkpoint/model_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "checkpoint/config_reader.hpp"
#include "checkpoint/mapped_file.hpp"

namespace penstock {
namespace {

using detail::ConfigReader;
using detail::IntegerRange;

// Row ids are int32. The other limits are far beyond any model and keep sizes from overflowing.
constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;
constexpr IntegerRange kRows{1, kMaxRows};
constexpr IntegerRange kTokenIds{0, kMaxRows};
constexpr IntegerRange kWidths{1, 1 << 20};
constexpr IntegerRange kLayers{1, 1 << 16};
constexpr IntegerRange kLayerIds{0, (1 << 16) - 1};

int to_int(std::int64_t value) {
  return static_cast<int>(value);
}

void check_layer_ids(const ConfigReader& reader, const ModelConfig& config,
                     const std::vector<std::int64_t>& layer_ids) {
  const std::set<std::int64_t> distinct(layer_ids.begin(), layer_ids.end());
  if (distinct.size() != layer_ids.size()) {
    reader.refuse("engram_layer_ids", *reader.find("engram_layer_ids"), "every layer once");
  }
  const std::int64_t layers =
      config.num_hidden_layers + config.num_nextn_predict_layers.value_or(0);
  if (config.num_hidden_layers > 0 && *distinct.rbegin() >= layers) {
    reader.refuse("engram_layer_ids", *reader.find("engram_layer_ids"),
                  fmt::format("layers below {}, the model's number of layers", layers));
  }
}

/// Refuses sizes whose primes could never make a table: n distinct primes sum up to more than
/// n * n / 2, and each is at least vocab_size.
void check_table_size(const ConfigReader& reader, const EngramConfig& engram) {
  const std::int64_t columns = engram.num_columns();
  // A prime is searched for every column of every layer, so their number must not be absurd either.
  constexpr std::int64_t kMaxColumns = 1 << 16;
  if (std::ssize(engram.layer_ids) > kMaxColumns / columns) {
    reader.refuse("engram_layer_ids", *reader.find("engram_layer_ids"),
                  fmt::format("at most {} columns in all layers together, of {} in each",
                              kMaxColumns, columns));
  }
  const std::int64_t least_prime = std::max(engram.vocab_size, columns / 2);
  if (columns <= kMaxRows / least_prime) return;
  reader.refuse(
      "engram_vocab_size", engram.vocab_size,
      fmt::format("{} columns of at least that many rows to stay below 2^31 rows", columns));
}

EngramConfig parse_engram(const ConfigReader& reader, const ModelConfig& config) {
  EngramConfig engram;
  const auto layer_ids = reader.required_integers("engram_layer_ids", kLayerIds);
  check_layer_ids(reader, config, layer_ids);
  for (const std::int64_t layer_id : layer_ids) engram.layer_ids.push_back(to_int(layer_id));
  engram.num_embeddings = reader.required_integers("engram_num_embeddings", kRows);
  if (engram.num_embeddings.size() != layer_ids.size()) {
    reader.refuse("engram_num_embeddings", *reader.find("engram_num_embeddings"),
                  fmt::format("{} numbers, one per layer of engram_layer_ids", layer_ids.size()));
  }
  engram.max_ngram_size = to_int(reader.required_integer("engram_max_ngram_size", {2, 64}));
  engram.num_heads = to_int(reader.required_integer("engram_n_heads", {1, 4096}));
  engram.head_dim = to_int(reader.required_integer("engram_head_dim", {32, 1 << 16}));
  if (engram.head_dim % 32 != 0) {
    reader.refuse("engram_head_dim", engram.head_dim, "a multiple of 32, the values of one scale");
  }
  engram.vocab_size = reader.required_integer("engram_vocab_size", kRows);
  engram.pad_token_id = reader.required_integer("engram_pad_token_id", kTokenIds);
  engram.compressed_vocab_size = reader.required_integer("engram_compressed_vocab_size", kRows);
  check_table_size(reader, engram);
  return engram;
}

bool has_engram(const ConfigReader& reader) {
  const auto* layer_ids = reader.find("engram_layer_ids");
  if (layer_ids != nullptr && layer_ids->is_array() && layer_ids->empty()) return false;
  // Named one by one: other engram_* keys, an engine's own, say nothing about tables.
  return std::ranges::any_of(
      std::initializer_list<const char*>{
          "engram_layer_ids", "engram_num_embeddings", "engram_max_ngram_size", "engram_n_heads",
          "engram_head_dim", "engram_vocab_size", "engram_compressed_vocab_size"},
      [&reader](const char* key) { return reader.find(key) != nullptr; });
}

bool is_hy_v4(const ModelConfig& config) {
  return config.architecture.starts_with("HYV4");
}

/// `gated_mla` decides; without it, HY V4's class has a gate, and so has who gives a gating_type.
bool has_gate(const ConfigReader& reader, const ModelConfig& config) {
  const bool by_default = is_hy_v4(config) || reader.find("gating_type") != nullptr;
  return reader.boolean("gated_mla").value_or(by_default);
}

/// A key that HY V4's class has a default for, and that other models must give.
int gate_size(const ConfigReader& reader, const ModelConfig& config, const char* key,
              int hy_v4_default) {
  constexpr IntegerRange kSizes{1, 1 << 14};
  if (is_hy_v4(config)) return to_int(reader.integer(key, kSizes).value_or(hy_v4_default));
  return to_int(reader.required_integer(key, kSizes));
}

GateConfig parse_gate(const ConfigReader& reader, const ModelConfig& config) {
  GateConfig gate;
  gate.num_heads = gate_size(reader, config, "num_attention_heads", 32);
  gate.v_head_dim = gate_size(reader, config, "v_head_dim", 256);
  const std::string gating = reader.string("gating_type").value_or("elementwise");
  if (gating == "headwise") {
    gate.gating = GatingType::Headwise;
  } else if (gating != "elementwise") {
    reader.refuse("gating_type", gating, R"("elementwise" or "headwise")");
  }
  return gate;
}

std::string parse_architecture(const ConfigReader& reader) {
  const auto* names = reader.find("architectures");
  if (names == nullptr || (names->is_array() && names->empty())) return {};
  if (!names->is_array() || !names->front().is_string()) {
    reader.refuse("architectures", *names, "a list of names");
  }
  return names->front().get<std::string>();
}

void parse_weight_blocks(const ConfigReader& reader, ModelConfig& config) {
  const auto* quantization = reader.find("quantization_config");
  if (quantization == nullptr) return;
  if (!quantization->is_object()) reader.refuse("quantization_config", *quantization, "an object");
  const auto found = quantization->find("weight_block_size");
  if (found == quantization->end() || found->is_null()) return;
  if (!found->is_array() || found->size() != 2) {
    reader.refuse("weight_block_size", *found, "[rows, columns]");
  }
  config.weight_block_rows =
      to_int(reader.checked_integer("weight_block_size[0]", (*found)[0], kWidths));
  config.weight_block_columns =
      to_int(reader.checked_integer("weight_block_size[1]", (*found)[1], kWidths));
}

double parse_epsilon(const ConfigReader& reader) {
  const double epsilon = reader.number("rms_norm_eps").value_or(ModelConfig{}.rms_norm_eps);
  if (!(epsilon >= 0 && epsilon < 1)) {
    reader.refuse("rms_norm_eps", *reader.find("rms_norm_eps"), "a number from 0 to below 1");
  }
  return epsilon;
}

}  // namespace

std::optional<int> EngramConfig::hash_layer_index(int layer_id) const {
  const auto found = std::ranges::find(layer_ids, layer_id);
  if (found == layer_ids.end()) return std::nullopt;
  return static_cast<int>(found - layer_ids.begin());
}

ModelConfig parse_model_config(std::string_view json, std::string_view source) {
  const ConfigReader reader(json, source);
  ModelConfig config;
  config.architecture = parse_architecture(reader);
  config.vocab_size = reader.integer("vocab_size", kRows).value_or(0);
  config.hidden_size = reader.integer("hidden_size", kWidths).value_or(0);
  config.num_hidden_layers = reader.integer("num_hidden_layers", kLayers).value_or(0);
  config.hc_mult = to_int(reader.integer("hc_mult", {1, 64}).value_or(1));
  config.rms_norm_eps = parse_epsilon(reader);
  config.num_nextn_predict_layers = reader.integer("num_nextn_predict_layers", {0, 1 << 10});
  parse_weight_blocks(reader, config);
  if (has_engram(reader)) config.engram = parse_engram(reader, config);
  if (has_gate(reader, config)) config.gate = parse_gate(reader, config);
  return config;
}

ModelConfig load_model_config(const std::filesystem::path& file) {
  const auto mapped = detail::MappedFile::open(file);
  return parse_model_config(mapped.text(), file.string());
}

}  // namespace penstock
