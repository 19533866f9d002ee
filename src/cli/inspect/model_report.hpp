#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "penstock/checkpoint/model_dir.hpp"

namespace penstock::cli {

/// Something that contradicts something else.
struct Inconsistency {
  std::string id;  ///< Stable, for machines; for example "row-count".
  std::string message;
};

/// One tensor of a layer that we serve.
struct TensorReport {
  std::string part;  ///< For example "embed.weight".
  TensorInfo info;
  std::string file;
};

struct EngramReport {
  int layer_id = 0;
  std::int64_t rows = 0;           ///< As config.json says.
  std::int64_t sum_of_primes = 0;  ///< As the hash needs.
  std::int64_t first_prime = 0;
  std::int64_t last_prime = 0;
  std::vector<TensorReport> tensors;
};

struct GateReport {
  int layer_id = 0;
  TensorReport tensor;
};

struct TokenizerReport {
  std::int64_t tokens = 0;      ///< Token ids, the model's placeholders included.
  std::int64_t compressed = 0;  ///< Different compressed ids.
};

/// What a model directory has for us, and where it contradicts itself.
struct ModelReport {
  std::filesystem::path directory;
  ModelConfig config;
  std::vector<EngramReport> engram;
  std::vector<GateReport> gates;
  std::optional<TokenizerReport> tokenizer;  ///< Nothing: no (readable) tokenizer.json.
  std::vector<Inconsistency> inconsistencies;
};

/// Errors: as ModelDir::open. Whatever is wrong behind config.json and the index is an
///         inconsistency, not an error.
ModelReport inspect_model(const std::filesystem::path& directory);

}  // namespace penstock::cli
