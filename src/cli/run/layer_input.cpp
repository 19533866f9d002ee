#include "cli/run/layer_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cli/run/made_up_input.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {

LayerInput::LayerInput(const std::filesystem::path& file, std::string name, std::int64_t width)
    : name_(std::move(name)),
      width_(width) {
  if (!file.empty()) file_ = SafetensorsFile::open(file);
}

void LayerInput::read(int layer_id, std::span<const std::int64_t> tokens,
                      std::vector<BF16>& out) const {
  out.resize(tokens.size() * static_cast<std::size_t>(width_));
  const TensorInfo* tensor = file_ ? &find(layer_id) : nullptr;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto row = std::span(out).subspan(i * static_cast<std::size_t>(width_),
                                            static_cast<std::size_t>(width_));
    if (tensor != nullptr) {
      copy_row(*tensor, tokens[i], row);
    } else {
      fill_input(static_cast<std::uint64_t>(layer_id),
                 static_cast<std::uint64_t>(tokens[i] * width_), row);
    }
  }
}

const TensorInfo& LayerInput::find(int layer_id) const {
  const std::string name = fmt::format("{}.{}", name_, layer_id);
  const TensorInfo* tensor = file_->find(name);
  if (tensor != nullptr && tensor->dtype == DType::BF16) return *tensor;
  throw Error(ErrorCode::NotFound,
              fmt::format("{}: no BF16 tensor {}", file_->path().string(), name));
}

void LayerInput::copy_row(const TensorInfo& tensor, std::int64_t token, std::span<BF16> row) const {
  const auto bytes = std::as_writable_bytes(row);
  const auto from = static_cast<std::size_t>(token) * bytes.size();
  const auto all = file_->bytes(tensor);
  if (from + bytes.size() > all.size()) {
    throw Error(ErrorCode::CorruptFile, fmt::format("{}: {} ends before token {}",
                                                    file_->path().string(), tensor.name, token));
  }
  std::ranges::copy(all.subspan(from, bytes.size()), bytes.begin());
}

}  // namespace penstock::cli
