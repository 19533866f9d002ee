#include "cli/inspect/model_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "penstock/checkpoint/bucket_primes.hpp"
#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/token_map.hpp"

namespace penstock::cli {
namespace {

using Shape = std::vector<std::int64_t>;

std::string shown(DType dtype, const Shape& shape) {
  return fmt::format("{} [{}]", to_string(dtype), fmt::join(shape, ", "));
}

std::int64_t blocks(std::int64_t size, int block) {
  return (size + block - 1) / block;
}

class Inspector {
 public:
  explicit Inspector(const std::filesystem::path& directory) : model_(ModelDir::open(directory)) {
    report_.directory = directory;
    report_.config = model_.config();
  }

  ModelReport run() {
    inspect_files();
    if (report_.config.engram) inspect_engram(*report_.config.engram);
    if (report_.config.gate) inspect_gates(*report_.config.gate);
    return std::move(report_);
  }

 private:
  void add(std::string id, std::string message) {
    report_.inconsistencies.push_back({std::move(id), std::move(message)});
  }

  /// Every declared file opens, and holds the tensors that the index says, no others.
  void inspect_files() {
    std::map<std::string, std::vector<std::string>> declared;
    try {
      declared = model_.declared_files();
    } catch (const Error& error) {
      has_broken_file_ = true;
      add("file", error.what());
      return;
    }
    for (const auto& [file, names] : declared) inspect_file(file, names);
  }

  void inspect_file(const std::string& file, const std::vector<std::string>& names) {
    const std::filesystem::path path = report_.directory / file;
    try {
      const auto opened = SafetensorsFile::open(path);
      const std::set<std::string_view> expected(names.begin(), names.end());
      for (const auto& name : names) {
        if (opened.find(name) != nullptr) continue;
        broken_.insert(name);
        add("index",
            fmt::format("{}: does not hold tensor {}, as the index says", path.string(), name));
      }
      for (const auto& tensor : opened.tensors()) {
        if (expected.contains(tensor.name)) continue;
        add("index", fmt::format("{}: holds tensor {}, which the index does not place there",
                                 path.string(), tensor.name));
      }
    } catch (const Error& error) {
      broken_.insert(names.begin(), names.end());
      add("file", error.what());
    }
  }

  bool is_broken(const std::vector<std::string>& names) const {
    return has_broken_file_ || std::ranges::any_of(names, [this](const std::string& name) {
             return broken_.contains(name);
           });
  }

  /// The tensor, unless the model lacks it or its file is broken; the former is reported here.
  std::optional<TensorReport> find(std::string part, const std::vector<std::string>& names) {
    // What is wrong with its file has been said.
    if (is_broken(names)) return std::nullopt;
    const auto tensor = model_.find(names);
    if (!tensor) {
      add("missing-tensor", fmt::format("no tensor {}", fmt::join(names, " or ")));
      return std::nullopt;
    }
    return TensorReport{std::move(part), tensor->info, tensor->file.filename().string()};
  }

  bool has(const std::vector<std::string>& names) const {
    return !is_broken(names) && model_.find(names).has_value();
  }

  void check(const TensorReport& tensor, std::span<const DType> dtypes, const Shape& shape) {
    const bool is_known = std::ranges::find(dtypes, tensor.info.dtype) != dtypes.end();
    if (is_known && tensor.info.shape == shape) return;
    add(is_known ? "shape" : "dtype",
        fmt::format("tensor {} is {}, needed {}", tensor.info.name,
                    shown(tensor.info.dtype, tensor.info.shape), shown(dtypes.front(), shape)));
  }

  void inspect_engram(const EngramConfig& engram) {
    check_numbers(engram);
    const auto primes = bucket_primes(engram);
    for (std::size_t i = 0; i < engram.layer_ids.size(); ++i) {
      EngramReport layer;
      layer.layer_id = engram.layer_ids[i];
      layer.rows = engram.num_embeddings[i];
      layer.sum_of_primes = std::accumulate(primes[i].begin(), primes[i].end(), std::int64_t{0});
      layer.first_prime = primes[i].front();
      layer.last_prime = primes[i].back();
      if (layer.rows != layer.sum_of_primes) {
        add("row-count",
            fmt::format("engram_num_embeddings of layer {} is {}, the primes from "
                        "engram_vocab_size {} on need {}",
                        layer.layer_id, layer.rows, engram.vocab_size, layer.sum_of_primes));
      }
      inspect_engram_tensors(engram, layer);
      report_.engram.push_back(std::move(layer));
    }
    inspect_tokenizer(engram);
  }

  void check_numbers(const EngramConfig& engram) {
    const ModelConfig& config = report_.config;
    if (config.hidden_size == 0) add("config", "hidden_size is missing");
    if (config.vocab_size != 0 && engram.pad_token_id >= config.vocab_size) {
      add("config", fmt::format("engram_pad_token_id is {}, vocab_size {}", engram.pad_token_id,
                                config.vocab_size));
    }
  }

  void inspect_engram_tensors(const EngramConfig& engram, EngramReport& layer) {
    constexpr std::array kCodes{DType::F8E4M3, DType::U8};
    constexpr std::array kScales{DType::F8E8M0, DType::U8};
    constexpr std::array kNorms{DType::BF16, DType::F32};
    const std::int64_t hidden = report_.config.hidden_size;
    const std::int64_t copies = report_.config.hc_mult;
    inspect_part(layer, "embed.weight", kCodes, {layer.rows, engram.head_dim});
    inspect_part(layer, "embed.scale", kScales, {layer.rows, engram.head_dim / 32});
    inspect_projection(layer, hidden * (copies + 1),
                       std::int64_t{engram.num_columns()} * engram.head_dim);
    inspect_part(layer, "q_weight", kNorms, {copies, hidden});
    inspect_part(layer, "k_weight", kNorms, {copies, hidden});
  }

  void inspect_part(EngramReport& layer, const char* part, std::span<const DType> dtypes,
                    const Shape& shape) {
    auto tensor = find(part, engram_tensor_names(layer.layer_id, part));
    if (!tensor) return;
    check(*tensor, dtypes, shape);
    layer.tensors.push_back(*std::move(tensor));
  }

  void inspect_projection(EngramReport& layer, std::int64_t outputs, std::int64_t inputs) {
    constexpr std::array kWeights{DType::F8E4M3, DType::BF16, DType::F32};
    constexpr std::array kScales{DType::F8E8M0, DType::U8, DType::F32};
    const std::size_t before = layer.tensors.size();
    inspect_part(layer, "wkv.weight", kWeights, {outputs, inputs});
    if (layer.tensors.size() == before) return;
    if (layer.tensors.back().info.dtype != DType::F8E4M3) {
      if (!has(engram_tensor_names(layer.layer_id, "wkv.scale"))) return;
      add("quantisation", fmt::format("layer {} has wkv.scale, but wkv.weight is {}",
                                      layer.layer_id, to_string(layer.tensors.back().info.dtype)));
      return;
    }
    const ModelConfig& config = report_.config;
    if (config.weight_block_rows == 0) {
      add("quantisation", fmt::format("wkv.weight of layer {} is F8_E4M3, needed "
                                      "quantization_config.weight_block_size in config.json",
                                      layer.layer_id));
      return;
    }
    inspect_part(
        layer, "wkv.scale", kScales,
        {blocks(outputs, config.weight_block_rows), blocks(inputs, config.weight_block_columns)});
  }

  /// Every multiplier of the hash follows from the compressed size, so a wrong one silently reads
  /// other rows.
  void inspect_tokenizer(const EngramConfig& engram) {
    const std::filesystem::path file = report_.directory / "tokenizer.json";
    if (!std::filesystem::exists(file)) return;
    const std::int64_t vocab_size = report_.config.vocab_size;
    try {
      const TokenMap map = TokenMap::from_tokenizer(
          file, vocab_size == 0 ? std::nullopt : std::optional(vocab_size));
      report_.tokenizer = {std::ssize(map.ids()), map.size()};
      if (map.size() == engram.compressed_vocab_size) return;
      add("compressed-size",
          fmt::format("engram_compressed_vocab_size is {}, {} compresses {} token ids to {}",
                      engram.compressed_vocab_size, file.string(), map.ids().size(), map.size()));
    } catch (const Error& error) {
      add("tokenizer", error.what());
    }
  }

  void inspect_gates(const GateConfig& gate) {
    const ModelConfig& config = report_.config;
    if (config.hidden_size == 0) add("config", "hidden_size is missing");
    if (config.num_hidden_layers == 0) add("config", "num_hidden_layers is missing");
    std::vector<std::string> missing;
    // The draft layers of multi-token prediction follow the others; a checkpoint may lack them.
    const std::int64_t drafts = config.num_nextn_predict_layers.value_or(0);
    for (std::int64_t id = 0; id < config.num_hidden_layers + drafts; ++id) {
      const int layer = static_cast<int>(id);
      const auto names = gate_tensor_names(layer);
      if (is_broken(names)) continue;
      if (!has(names)) {
        if (id < config.num_hidden_layers) missing.push_back(std::to_string(id));
        continue;
      }
      const auto tensor = find("linear_gate.weight", names).value();
      constexpr std::array kWeights{DType::BF16};
      check(tensor, kWeights, {gate.output_size(), config.hidden_size});
      report_.gates.push_back({layer, tensor});
    }
    if (missing.empty()) return;
    add("missing-tensor",
        fmt::format("no tensor {} for layers {}",
                    "model.layers.<layer>.self_attn.linear_gate.weight", fmt::join(missing, ", ")));
  }

  ModelDir model_;
  ModelReport report_;
  bool has_broken_file_ = false;
  std::set<std::string> broken_;  // tensors that cannot be read
};

}  // namespace

ModelReport inspect_model(const std::filesystem::path& directory) {
  return Inspector(directory).run();
}

}  // namespace penstock::cli
