#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/dtype.hpp"

namespace penstock::cli {

/// A part of a layer's output: one tensor, token by token.
struct OutputPart {
  std::string name;
  DType dtype = DType::BF16;
  std::vector<std::int64_t> token_shape;  ///< Of one token.
  std::vector<std::byte> bytes;           ///< Of the tokens that this rank has, in their order.

  template <typename T>
  void append(std::span<const T> values) {
    const auto more = std::as_bytes(values);
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
};

/// What a rank has computed of one layer.
struct LayerOutput {
  std::vector<std::int64_t> tokens;  ///< Their numbers in the run.
  std::vector<OutputPart> parts;
};

/// Makes the directory for the output, so that one that cannot be had is an error before the work.
///
/// Collective: over `world`; rank 0 makes it.
/// Errors:     System if it cannot be made.
void make_output_directory(Communicator& world, const std::filesystem::path& directory);

/// Writes `directory/layer<ID>.safetensors` with one tensor [tokens, token shape] for each part, in
/// the order of the run's tokens.
///
/// Collective: over `world`; ranks without tokens pass the parts empty; rank 0 writes.
/// Errors:     Internal if a token is missing or there twice.
void write_layer_output(Communicator& world, int layer_id, std::int64_t num_tokens,
                        const LayerOutput& mine, const std::filesystem::path& directory);

}  // namespace penstock::cli
