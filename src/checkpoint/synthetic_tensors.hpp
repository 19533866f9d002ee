#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/checkpoint/synthetic_model.hpp"

namespace penstock::detail {

/// A tensor that is made row by row, in any order.
struct SyntheticTensor {
  TensorInfo info;  ///< Its first dimension counts the rows.
  bool is_table = false;
  std::function<void(std::int64_t row, std::span<std::byte> out)> fill_row;
};

/// One safetensors file.
struct SyntheticFile {
  std::string name;
  std::vector<SyntheticTensor> tensors;
};

/// The files of a model with `options`; `config` is what its config.json says. A released
/// checkpoint keeps each table in a file of its own, after the rest; so do shards here.
std::vector<SyntheticFile> synthetic_files(const SyntheticModelOptions& options,
                                           const ModelConfig& config);

}  // namespace penstock::detail
