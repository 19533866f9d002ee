#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "penstock/checkpoint/model_config.hpp"

namespace penstock::testing_support {

/// A file of tests/golden.
inline nlohmann::json golden(const std::string& name) {
  std::ifstream file(PENSTOCK_TEST_DATA "/golden/" + name);
  if (!file) throw std::runtime_error("no golden file " + name);
  return nlohmann::json::parse(file);
}

inline EngramConfig engram_config_of(const nlohmann::json& config) {
  return {.layer_ids = config.at("engram_layer_ids"),
          .num_embeddings = config.at("engram_num_embeddings"),
          .max_ngram_size = config.at("engram_max_ngram_size"),
          .num_heads = config.at("engram_n_heads"),
          .head_dim = config.at("engram_head_dim"),
          .vocab_size = config.at("engram_vocab_size"),
          .pad_token_id = config.at("engram_pad_token_id"),
          .compressed_vocab_size = config.at("engram_compressed_vocab_size")};
}

/// DeepSeek V4.1 Flash.
inline EngramConfig released_config() {
  return {.layer_ids = {1, 14},
          .num_embeddings = {384006168, 384016682},
          .max_ngram_size = 4,
          .num_heads = 8,
          .head_dim = 256,
          .vocab_size = 16000000,
          .pad_token_id = 2,
          .compressed_vocab_size = 99092};
}

/// Three layers of orders 2 and 3, two heads, tables of about 400 rows.
inline EngramConfig small_config() {
  return {.layer_ids = {0, 3, 5},
          .num_embeddings = {1000, 1000, 1000},
          .max_ngram_size = 3,
          .num_heads = 2,
          .head_dim = 32,
          .vocab_size = 97,
          .pad_token_id = 1,
          .compressed_vocab_size = 50};
}

}  // namespace penstock::testing_support
