#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "gate/agreement.hpp"
#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/core/error.hpp"
#include "penstock/gate/gate_linear.hpp"

namespace penstock {
namespace {

/// A layer's weight inside the mapped checkpoint.
struct GateFile {
  ModelDir model;
  GateShape shape;
  std::span<const BF16> weight;
  std::vector<BF16> copy;  ///< Of a weight that begins at an odd byte, which the format allows.
};

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

GateFile find_gate(const std::filesystem::path& directory, int layer_id) {
  GateFile file{.model = ModelDir::open(directory), .shape = {}, .weight = {}, .copy = {}};
  const ModelConfig& config = file.model.config();
  if (!config.gate) {
    throw Error(ErrorCode::NotFound,
                fmt::format("open_gate_linear: {}: the model has no gate", directory.string()));
  }
  const TensorRef tensor = file.model.require(gate_tensor_names(layer_id));
  const std::string where =
      fmt::format("open_gate_linear: {}: {}", tensor.file.string(), tensor.info.name);
  if (tensor.info.dtype != DType::BF16) {
    throw Error(ErrorCode::Unsupported, fmt::format("{} is {}, needs BF16: quantised gates are not "
                                                    "supported",
                                                    where, to_string(tensor.info.dtype)));
  }
  file.shape = {config.hidden_size, config.gate->output_size(), config.gate->gating};
  const std::vector<std::int64_t> needed{file.shape.output_size, file.shape.hidden_size};
  if (tensor.info.shape != needed) {
    throw Error(ErrorCode::CorruptFile,
                fmt::format("{} is {}, config.json needs {}", where, shape_text(tensor.info.shape),
                            shape_text(needed)));
  }
  file.weight = {reinterpret_cast<const BF16*>(tensor.bytes.data()),
                 tensor.bytes.size() / sizeof(BF16)};
  if (reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % alignof(BF16) != 0) {
    file.copy.resize(file.weight.size());
    std::memcpy(file.copy.data(), tensor.bytes.data(), tensor.bytes.size());
    file.weight = file.copy;
  }
  return file;
}

}  // namespace

GateLinear open_gate_linear(const std::filesystem::path& model_dir, int layer_id,
                            Communicator* comm, const GateOptions& options) {
  std::optional<GateFile> file;
  detail::agree(comm, "open_gate_linear", [&]() -> detail::AgreedFields {
    file = find_gate(model_dir, layer_id);
    return {{"layer", std::to_string(layer_id)}};
  });
  // The whole tensor is mapped, but only this rank's slice of it is ever touched, unless it was copied.
  return {file->shape, file->weight, WeightPart::Full, comm, options};
}

}  // namespace penstock
