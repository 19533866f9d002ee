#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/dtype.hpp"

namespace penstock::cli {

/// What comes into a layer, token by token: tensors `<name>.<layer>` of a file, or made up.
class LayerInput {
 public:
  /// An empty `file` means that inputs are made up. `width` is the elements of a token.
  LayerInput(const std::filesystem::path& file, std::string name, std::int64_t width);

  /// Shapes: out [tokens, width].
  /// Errors: NotFound without such a bf16 tensor; CorruptFile if it ends before a token.
  void read(int layer_id, std::span<const std::int64_t> tokens, std::vector<BF16>& out) const;

 private:
  const TensorInfo& find(int layer_id) const;
  void copy_row(const TensorInfo& tensor, std::int64_t token, std::span<BF16> row) const;

  std::string name_;
  std::int64_t width_;
  std::optional<SafetensorsFile> file_;
};

}  // namespace penstock::cli
