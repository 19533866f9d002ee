#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/checkpoint/model_config.hpp"
#include "penstock/checkpoint/safetensors.hpp"

namespace penstock {

/// A tensor of a model directory: what it is, and its bytes inside the mapped file.
struct TensorRef {
  TensorInfo info;
  std::span<const std::byte> bytes;  ///< Valid while the ModelDir lives.
  std::filesystem::path file;
};

/// A model directory in Hugging Face form: config.json, model.safetensors or
/// model.safetensors.index.json with its shards, and perhaps tokenizer.json.
///
/// Files are mapped when a tensor in them is first asked for; a file that nobody asks for may be
/// absent. Symbolic links are followed. Copies share the mappings.
/// Threads: const members are safe from any thread.
class ModelDir {
 public:
  /// Errors: NotFound without config.json; CorruptFile for a bad config or index.
  static ModelDir open(const std::filesystem::path& directory);

  const std::filesystem::path& path() const;
  const ModelConfig& config() const;

  /// The first of `names` that the model has; nothing if it has none.
  ///
  /// Errors: NotFound if the index names a file that is missing; CorruptFile if that file does not
  ///         hold the tensor or is malformed.
  std::optional<TensorRef> find(std::span<const std::string> names) const;
  std::optional<TensorRef> find(std::string_view name) const;

  /// Like find, but a tensor that is missing is an error that lists the names tried.
  TensorRef require(std::span<const std::string> names) const;

  /// Every tensor name that the directory declares, sorted.
  std::vector<std::string> tensor_names() const;

  /// The same names by the file that is said to hold them; file names inside the directory. A file
  /// of an index need not exist.
  std::map<std::string, std::vector<std::string>> declared_files() const;

 private:
  struct State;
  explicit ModelDir(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

/// The spellings under which a layer's Engram tensor may stand: the checkpoint's own
/// (`layers.1.engram.embed.scale`) and the mapped ones
/// (`model.layers.1.engram.embed_tokens.weight_scale_inv`).
///
/// Range: `part` is "embed.weight", "embed.scale", "wkv.weight", "wkv.scale", "q_weight" or
///        "k_weight".
std::vector<std::string> engram_tensor_names(int layer_id, std::string_view part);

/// The same for the gate projection: `model.layers.<i>.self_attn.linear_gate.weight` first.
std::vector<std::string> gate_tensor_names(int layer_id);

}  // namespace penstock
