#include "checkpoint/synthetic_tensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "checkpoint/synthetic_values.hpp"
#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/core/dtype.hpp"

namespace penstock::detail {
namespace {

constexpr std::int64_t kBlock = 32;  // rows and columns of a quantisation block

/// Distinguishes the tensors of one layer. Part of what a seed means: never renumber.
enum TensorPart : std::uint64_t { kTable, kWkv, kWkvScale, kQWeight, kKWeight, kGate };

void store_bf16(std::span<std::byte> out, std::int64_t index, BF16 number) {
  std::memcpy(out.data() + 2 * index, &number.bits, 2);
}

/// The projection of one layer: codes, and the scale byte of each block.
struct Projection {
  std::uint64_t code_key = 0;
  std::uint64_t scale_key = 0;
  std::int64_t width = 0;  ///< Inputs.
  int usual_scale = 0;     ///< The scale byte that keeps outputs around 1.

  Projection(std::uint64_t seed, int layer_id, std::int64_t inputs)
      : code_key(layer_key(seed, layer_id, kWkv)),
        scale_key(layer_key(seed, layer_id, kWkvScale)),
        width(inputs) {
    // Root mean squares of a table's elements, of usual codes, and of the spread of the scales.
    constexpr double kRow = 4.4;
    constexpr double kCode = 1.71;
    constexpr double kSpread = 1.32;
    const double output = std::sqrt(static_cast<double>(inputs)) * kRow * kCode * kSpread;
    usual_scale = 127 - static_cast<int>(std::lround(std::log2(output)));
  }

  void fill_codes(std::int64_t row, std::span<std::byte> out) const {
    const std::uint64_t key = row_key(code_key, row);
    for (std::int64_t i = 0; i < width / 8; ++i) {
      const std::uint64_t word = usual_codes(word_of_row(key, i));
      std::memcpy(out.data() + 8 * i, &word, 8);
    }
  }

  std::uint8_t scale(std::uint64_t scale_row_key, std::int64_t block) const {
    const auto step = static_cast<int>(word_of_row(scale_row_key, block) % 3) - 1;
    return static_cast<std::uint8_t>(usual_scale + step);
  }

  void fill_scales(std::int64_t block_row, std::span<std::byte> out) const {
    const std::uint64_t key = row_key(scale_key, block_row);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = std::byte{scale(key, static_cast<std::int64_t>(i))};
    }
  }

  /// What codes and scales stand for.
  void fill_bf16(std::int64_t row, std::span<std::byte> out) const {
    std::vector<std::byte> codes(static_cast<std::size_t>(width));
    fill_codes(row, codes);
    const std::uint64_t key = row_key(scale_key, row / kBlock);
    for (std::int64_t i = 0; i < width; ++i) {
      const auto code = std::to_integer<std::uint8_t>(codes[static_cast<std::size_t>(i)]);
      store_bf16(out, i, dequantize_element(code, scale(key, i / kBlock)));
    }
  }
};

TensorInfo tensor_info(std::string name, DType dtype, std::int64_t rows, std::int64_t columns) {
  return {std::move(name), dtype, {rows, columns}, 0, 0};
}

std::vector<SyntheticTensor> table_tensors(const SyntheticModelOptions& options,
                                           const EngramConfig& engram, int layer_id,
                                           std::int64_t rows) {
  const std::uint64_t key = layer_key(options.seed, layer_id, kTable);
  const auto name = [layer_id](const char* part) {
    return engram_tensor_names(layer_id, part).front();
  };
  return {
      {tensor_info(name("embed.weight"), DType::F8E4M3, rows, engram.head_dim), true,
       [key](std::int64_t row, std::span<std::byte> out) {
         fill_table_codes(row_key(key, row), out);
       }},
      {tensor_info(name("embed.scale"), DType::F8E8M0, rows, engram.head_dim / kBlock), true,
       [key](std::int64_t row, std::span<std::byte> out) {
         fill_table_scales(row_key(key, row), out);
       }},
  };
}

/// Weights of the norms in front of the gate: near 1.
SyntheticTensor norm_weight(std::uint64_t key, const char* part, int layer_id,
                            const ModelConfig& config) {
  return {tensor_info(engram_tensor_names(layer_id, part).front(), DType::BF16, config.hc_mult,
                      config.hidden_size),
          false, [key, width = config.hidden_size](std::int64_t row, std::span<std::byte> out) {
            const std::uint64_t mine = row_key(key, row);
            for (std::int64_t i = 0; i < width; ++i) {
              store_bf16(out, i, to_bf16(1.0F + 0.25F * even_number(word_of_row(mine, i))));
            }
          }};
}

std::vector<SyntheticTensor> layer_tensors(const SyntheticModelOptions& options,
                                           const ModelConfig& config, int layer_id) {
  const std::int64_t inputs = std::int64_t{config.engram->num_columns()} * config.engram->head_dim;
  const std::int64_t outputs = config.hidden_size * (config.hc_mult + 1);
  const Projection wkv(options.seed, layer_id, inputs);
  const auto name = [layer_id](const char* part) {
    return engram_tensor_names(layer_id, part).front();
  };
  std::vector<SyntheticTensor> out;
  if (options.use_quantised_wkv) {
    out.push_back(
        {tensor_info(name("wkv.weight"), DType::F8E4M3, outputs, inputs), false,
         [wkv](std::int64_t row, std::span<std::byte> bytes) { wkv.fill_codes(row, bytes); }});
    out.push_back({tensor_info(name("wkv.scale"), DType::F8E8M0, (outputs + kBlock - 1) / kBlock,
                               inputs / kBlock),
                   false, [wkv](std::int64_t row, std::span<std::byte> bytes) {
                     wkv.fill_scales(row, bytes);
                   }});
  } else {
    out.push_back(
        {tensor_info(name("wkv.weight"), DType::BF16, outputs, inputs), false,
         [wkv](std::int64_t row, std::span<std::byte> bytes) { wkv.fill_bf16(row, bytes); }});
  }
  out.push_back(
      norm_weight(layer_key(options.seed, layer_id, kQWeight), "q_weight", layer_id, config));
  out.push_back(
      norm_weight(layer_key(options.seed, layer_id, kKWeight), "k_weight", layer_id, config));
  return out;
}

SyntheticTensor gate_tensor(const SyntheticModelOptions& options, const ModelConfig& config,
                            int layer_id) {
  constexpr float kDeviation = 0.02F;
  const std::uint64_t key = layer_key(options.seed, layer_id, kGate);
  return {tensor_info(gate_tensor_names(layer_id).front(), DType::BF16, config.gate->output_size(),
                      config.hidden_size),
          false, [key, width = config.hidden_size](std::int64_t row, std::span<std::byte> out) {
            const std::uint64_t mine = row_key(key, row);
            for (std::int64_t i = 0; i < width; ++i) {
              store_bf16(out, i, to_bf16(kDeviation * normal_number(word_of_row(mine, i))));
            }
          }};
}

void append(std::vector<SyntheticTensor>& tensors, std::vector<SyntheticTensor> more) {
  std::ranges::move(more, std::back_inserter(tensors));
}

/// The tensors of every file, before the files have names.
std::vector<std::vector<SyntheticTensor>> tensors_by_file(const SyntheticModelOptions& options,
                                                          const ModelConfig& config) {
  constexpr std::size_t kGatesPerFile = 8;
  std::vector<std::vector<SyntheticTensor>> files(1);
  if (config.engram) {
    const EngramConfig& engram = *config.engram;
    for (const int layer : engram.layer_ids)
      append(files[0], layer_tensors(options, config, layer));
    for (std::size_t i = 0; i < engram.layer_ids.size(); ++i) {
      files.push_back(
          table_tensors(options, engram, engram.layer_ids[i], engram.num_embeddings[i]));
    }
    return files;
  }
  std::vector<int> layers = options.layers;
  for (int draft = 0; draft < options.num_draft_gates; ++draft) {
    layers.push_back(static_cast<int>(config.num_hidden_layers) + draft);
  }
  for (const int layer : layers) {
    if (files.back().size() == kGatesPerFile) files.emplace_back();
    files.back().push_back(gate_tensor(options, config, layer));
  }
  return files;
}

}  // namespace

std::vector<SyntheticFile> synthetic_files(const SyntheticModelOptions& options,
                                           const ModelConfig& config) {
  auto contents = tensors_by_file(options, config);
  std::vector<SyntheticFile> files;
  if (!options.use_shards) {
    files.push_back({"model.safetensors", {}});
    for (auto& tensors : contents) append(files[0].tensors, std::move(tensors));
    return files;
  }
  for (std::size_t i = 0; i < contents.size(); ++i) {
    files.push_back({fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, contents.size()),
                     std::move(contents[i])});
  }
  return files;
}

}  // namespace penstock::detail
