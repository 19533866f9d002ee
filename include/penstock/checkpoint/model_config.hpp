#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// The `engram_*` keys of a config.json.
struct EngramConfig {
  std::vector<int> layer_ids;                ///< Model layer ids, in config order; not empty.
  std::vector<std::int64_t> num_embeddings;  ///< Rows of each layer's table.
  int max_ngram_size = 0;                    ///< N >= 2; orders are 2..N.
  int num_heads = 0;                         ///< Heads per order.
  int head_dim = 0;                          ///< Elements of a row; a multiple of 32.
  std::int64_t vocab_size = 0;               ///< Base of the primes.
  std::int64_t pad_token_id = 0;             ///< Raw token id.
  std::int64_t compressed_vocab_size = 0;    ///< V of the multipliers.

  int num_columns() const { return (max_ngram_size - 1) * num_heads; }
  int lookback_depth() const { return max_ngram_size - 1; }

  /// Index of a model layer id in layer_ids; nothing if the layer has no Engram.
  std::optional<int> hash_layer_index(int layer_id) const;
};

/// What one row of a gate's weight governs.
enum class GatingType {
  Elementwise,  ///< One number of the attention's output.
  Headwise      ///< All numbers of one attention head.
};

/// What HY V4's gate projection needs to know.
struct GateConfig {
  int num_heads = 0;
  int v_head_dim = 0;
  GatingType gating = GatingType::Elementwise;

  /// G: rows of the gate's weight.
  std::int64_t output_size() const {
    return gating == GatingType::Headwise ? num_heads : std::int64_t{num_heads} * v_head_dim;
  }
};

/// The parts of a Hugging Face config.json that Penstock uses. Keys are looked up at the top level
/// and under `text_config`; keys that Penstock does not know are ignored.
struct ModelConfig {
  std::string architecture;            ///< First of `architectures`; may be empty.
  std::int64_t vocab_size = 0;         ///< 0 if absent.
  std::int64_t hidden_size = 0;        ///< 0 if absent.
  std::int64_t num_hidden_layers = 0;  ///< 0 if absent.
  int hc_mult = 1;                     ///< Hyper-connection copies of the residual stream.
  double rms_norm_eps = 1e-6;
  int weight_block_rows = 0;  ///< Block-fp8 grid of linear weights; 0: not quantised.
  int weight_block_columns = 0;
  std::optional<std::int64_t> num_nextn_predict_layers;
  std::optional<EngramConfig> engram;
  std::optional<GateConfig> gate;
};

/// Parses the text of a config.json. `source` names it in errors.
///
/// Errors: CorruptFile for bad JSON, duplicate keys, a missing or absurd value; the message names
///         the key, the value found and what is needed.
ModelConfig parse_model_config(std::string_view json, std::string_view source);

/// Reads and parses a file. Errors: as above; NotFound if there is no such file.
ModelConfig load_model_config(const std::filesystem::path& file);

}  // namespace penstock
