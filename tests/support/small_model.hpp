#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "penstock/checkpoint/bucket_primes.hpp"
#include "penstock/checkpoint/model_config.hpp"
#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/dtype.hpp"

// A model directory of a few hundred rows, with Engram at layers 1 and 14, that a test can read both
// through Penstock and from these vectors.
namespace penstock::test {

struct SmallModel {
  std::filesystem::path directory;
  int max_ngram = 4;
  int heads = 8;
  int head_dim = 32;
  int hidden = 64;
  int hc_mult = 2;
  std::vector<std::vector<std::int64_t>> head_sizes;  ///< [2 layers][columns]
  std::vector<std::vector<std::uint8_t>> values;      ///< [2][rows * head_dim]
  std::vector<std::vector<std::uint8_t>> scales;      ///< [2][rows * head_dim / 32]

  static constexpr int kLayers[2] = {1, 14};

  int columns() const { return (max_ngram - 1) * heads; }
  std::int64_t rows(std::size_t layer) const {
    return std::accumulate(head_sizes[layer].begin(), head_sizes[layer].end(), std::int64_t{0});
  }

  /// Element `i` of a row, from the definition.
  BF16 element(std::size_t layer, std::int64_t row, int i) const {
    const std::int64_t at = row * head_dim + i;
    return dequantize_element(values[layer][static_cast<std::size_t>(at)],
                              scales[layer][static_cast<std::size_t>(at / 32)]);
  }

  /// Row ids [tokens, 2, columns], each within its column's rows, now and then -1.
  std::vector<std::int32_t> random_ids(std::int64_t tokens, std::uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<std::int32_t> ids;
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::size_t layer = 0; layer < 2; ++layer) {
        std::int64_t first = 0;
        for (const std::int64_t size : head_sizes[layer]) {
          const bool is_dead = random() % 16 == 0;
          ids.push_back(is_dead ? -1
                                : static_cast<std::int32_t>(
                                      first + static_cast<std::int64_t>(random()) % size));
          first += size;
        }
      }
    }
    return ids;
  }
};

template <typename T>
void append_tensor(SafetensorsWriter& writer, const std::vector<T>& numbers) {
  writer.append(std::as_bytes(std::span(numbers)));
}

inline std::vector<BF16> random_bf16(std::size_t count, float scale, std::mt19937& random) {
  std::vector<BF16> out(count);
  for (BF16& x : out) {
    x = to_bf16((static_cast<float>(random() % 2001) / 1000.0F - 1.0F) * scale);
  }
  return out;
}

/// Writes the model into `directory`, which must not exist yet.
inline SmallModel make_small_model(const std::filesystem::path& directory, int max_ngram,
                                   int heads) {
  SmallModel model;
  model.directory = directory;
  model.max_ngram = max_ngram;
  model.heads = heads;
  EngramConfig config;
  config.layer_ids = {SmallModel::kLayers[0], SmallModel::kLayers[1]};
  config.num_embeddings = {0, 0};
  config.max_ngram_size = max_ngram;
  config.num_heads = heads;
  config.head_dim = model.head_dim;
  config.vocab_size = 11;
  config.compressed_vocab_size = 100;
  model.head_sizes = bucket_primes(config);

  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << fmt::format(
      R"({{"architectures": ["DeepseekV41ForCausalLM"], "vocab_size": 128, "hidden_size": {}, "hc_mult": {},
  "num_hidden_layers": 16, "rms_norm_eps": 1e-20, "engram_layer_ids": [1, 14],
  "engram_num_embeddings": [{}, {}], "engram_max_ngram_size": {}, "engram_n_heads": {},
  "engram_head_dim": {}, "engram_vocab_size": 11, "engram_pad_token_id": 2,
  "engram_compressed_vocab_size": 100}})",
      model.hidden, model.hc_mult, model.rows(0), model.rows(1), max_ngram, heads, model.head_dim);

  const std::int64_t width = std::int64_t{model.columns()} * model.head_dim;
  const std::int64_t outputs = std::int64_t{model.hc_mult + 1} * model.hidden;
  std::vector<TensorInfo> tensors;
  for (std::size_t layer = 0; layer < 2; ++layer) {
    const std::string prefix = fmt::format("layers.{}.engram.", SmallModel::kLayers[layer]);
    const auto add = [&](const char* name, DType dtype, std::vector<std::int64_t> shape) {
      tensors.push_back({.name = prefix + name, .dtype = dtype, .shape = std::move(shape)});
    };
    add("embed.weight", DType::F8E4M3, {model.rows(layer), model.head_dim});
    add("embed.scale", DType::F8E8M0, {model.rows(layer), model.head_dim / 32});
    add("wkv.weight", DType::BF16, {outputs, width});
    add("q_weight", DType::BF16, {model.hc_mult, model.hidden});
    add("k_weight", DType::BF16, {model.hc_mult, model.hidden});
  }
  SafetensorsWriter writer(directory / "model.safetensors", tensors);
  std::mt19937 random(5);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    auto& values =
        model.values.emplace_back(static_cast<std::size_t>(model.rows(layer) * model.head_dim));
    for (auto& code : values) code = static_cast<std::uint8_t>(random() % 0x7F);
    auto& scales = model.scales.emplace_back(values.size() / 32);
    for (auto& byte : scales) byte = static_cast<std::uint8_t>(118 + random() % 8);
    append_tensor(writer, values);
    append_tensor(writer, scales);
    append_tensor(writer, random_bf16(static_cast<std::size_t>(outputs * width), 0.05F, random));
    for (int weight = 0; weight < 2; ++weight) {
      append_tensor(writer, random_bf16(static_cast<std::size_t>(model.hc_mult * model.hidden),
                                        1.0F, random));
    }
  }
  writer.finish();
  return model;
}

}  // namespace penstock::test
