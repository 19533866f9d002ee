#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/checkpoint/model_config.hpp"

namespace penstock {

/// Models whose checkpoint layout make_synthetic_model knows.
enum class ModelFamily { DeepSeekV41Flash, HyV4, HyV4Preview };

/// "deepseek-v4.1-flash", "hy-v4" or "hy-v4-preview".
std::string_view to_string(ModelFamily family);

/// The inverse of to_string; nothing for another name.
std::optional<ModelFamily> parse_model_family(std::string_view name);

/// What a synthetic model looks like. Fields of the other kind of layer are ignored: a DeepSeek
/// model has Engram layers, an HY V4 model has gates.
struct SyntheticModelOptions {
  ModelFamily family = ModelFamily::DeepSeekV41Flash;
  std::uint64_t seed = 1;               ///< The bytes of all tensors follow from it.
  std::vector<int> layers{1, 14};       ///< Layer ids that get an Engram, or a gate.
  std::int64_t num_hidden_layers = 40;  ///< Raised above the largest of `layers` if need be.
  std::int64_t hidden_size = 512;
  std::int64_t vocab_size = 129'280;
  std::filesystem::path tokenizer;  ///< Copied as tokenizer.json; `.xz` is unpacked.
  bool use_holes = false;           ///< Tables are holes: rows of zeros that take no disk.
  bool use_shards = true;           ///< Each table in a file of its own, with an index.

  int hc_mult = 4;
  std::int64_t engram_vocab_size = 42'000;  ///< Base of the primes.
  int num_heads = 8;                        ///< Hash heads per order.
  int max_ngram_size = 4;
  int head_dim = 256;
  std::int64_t compressed_vocab_size = 99'092;
  std::int64_t pad_token_id = 2;
  bool use_quantised_wkv = true;  ///< Block fp8 with ue8m0 scales, 32 x 32; else bf16.

  int num_attention_heads = 32;
  int v_head_dim = 256;
  GatingType gating = GatingType::Elementwise;
  int num_draft_gates = 0;  ///< Draft layers, behind all others, that get a gate too.
};

/// Sizes for trying things out: about 0.5 GiB of tables, or two gates of the family's real size.
SyntheticModelOptions demo_model_options(ModelFamily family);

/// The released sizes: 188.8 GiB of tables for DeepSeek V4.1 Flash; 35 gates of 44 MiB for HY V4,
/// 79 of 192 MiB for its preview.
SyntheticModelOptions released_model_options(ModelFamily family);

/// How far make_synthetic_model is.
struct SyntheticModelProgress {
  std::string_view file;         ///< Being written; valid during the call.
  std::uint64_t done_bytes = 0;  ///< Of all tensors.
  std::uint64_t total_bytes = 0;
};

struct SyntheticModelSummary {
  std::vector<std::string> files;  ///< Names inside the directory, in the order of writing.
  std::uint64_t tensor_bytes = 0;
};

/// Writes a model directory with the names, dtypes and layout of a real checkpoint and made-up
/// numbers: config.json, safetensors with or without an index, and perhaps tokenizer.json.
///
/// A table row is a pure function of (seed, layer, row): finite codes, scale bytes 118 to 130, and
/// a few percent of rows made of subnormals, zeros of both signs, or the whole range of codes. The
/// projection is scaled so that its outputs stay around 1; the bf16 projection holds the numbers of
/// the quantised one. config.json is written last, so that a killed run leaves no usable directory.
///
/// Errors: InvalidArgument for options that make no model, and for a directory that holds something
///         already; System if the disk has too little room or a write fails; the files written so
///         far are removed. As load_tokenizer for a tokenizer.
/// Cost:   memory for a few megabytes; work on all of parallel_threads().
SyntheticModelSummary make_synthetic_model(
    const std::filesystem::path& directory, const SyntheticModelOptions& options,
    const std::function<void(const SyntheticModelProgress&)>& progress = {});

}  // namespace penstock
