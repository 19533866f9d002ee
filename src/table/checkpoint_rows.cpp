#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/table/row_source.hpp"
#include "penstock/table/table_view.hpp"
#include "table/check_read.hpp"
#include "table/row_record.hpp"
#include "table/sharing/mapping.hpp"

namespace penstock {
namespace {

// A load of a whole table reads in long runs and never comes back; the pages that it leaves mapped
// would count as memory of this process.
constexpr std::size_t kLongRead = std::size_t{1} << 20;

class CheckpointRows final : public RowSource {
 public:
  CheckpointRows(ModelDir model, int layer_id, const TensorRef& values, const TensorRef& scales)
      : model_(std::move(model)),
        layer_id_(layer_id),
        num_rows_(values.info.shape[0]),
        head_dim_(static_cast<int>(values.info.shape[1])),
        arrays_{values.bytes.data(), scales.bytes.data()} {}

  std::int64_t num_rows() const override { return num_rows_; }
  int head_dim() const override { return head_dim_; }
  SplitArrays split_arrays() const override { return arrays_; }

  void read(std::int64_t first, std::span<std::byte> records) const override {
    const std::int64_t count = detail::check_read(*this, first, records.size());
    const auto value_bytes = static_cast<std::size_t>(head_dim_);
    const std::size_t scale_bytes = value_bytes / 32;
    const std::byte* values = arrays_.values + first * head_dim_;
    const std::byte* scales = arrays_.scales + first * (head_dim_ / 32);
    std::byte* record = records.data();
    for (std::int64_t i = 0; i < count; ++i) {
      detail::write_row_record(values, scales, head_dim_, record);
      values += value_bytes;
      scales += scale_bytes;
      record += row_record_bytes(head_dim_);
    }
    if (records.size() < kLongRead) return;
    detail::drop_file_pages(
        {arrays_.values + first * head_dim_, value_bytes * static_cast<std::size_t>(count)});
    detail::drop_file_pages(
        {arrays_.scales + first * (head_dim_ / 32), scale_bytes * static_cast<std::size_t>(count)});
  }

  std::string description() const override {
    return fmt::format("{}, layer {}", model_.path().string(), layer_id_);
  }

 private:
  ModelDir model_;  // keeps the files mapped
  int layer_id_;
  std::int64_t num_rows_;
  int head_dim_;
  SplitArrays arrays_;
};

/// Errors: CorruptFile unless the tensor has this shape and one of these types.
void check_tensor(const TensorRef& tensor, const std::vector<std::int64_t>& shape, DType dtype) {
  // Some writers store both as plain bytes; the bits are the same.
  const bool is_typed = tensor.info.dtype == dtype || tensor.info.dtype == DType::U8;
  if (is_typed && tensor.info.shape == shape) return;
  throw Error(
      ErrorCode::CorruptFile,
      fmt::format("{}: tensor {} is {} [{}], needed: {} or U8 [{}] as config.json says",
                  tensor.file.string(), tensor.info.name, to_string(tensor.info.dtype),
                  fmt::join(tensor.info.shape, ", "), to_string(dtype), fmt::join(shape, ", ")));
}

}  // namespace

std::shared_ptr<const RowSource> open_checkpoint_rows(const ModelDir& model, int layer_id) {
  const auto& engram = model.config().engram;
  const auto index = engram ? engram->hash_layer_index(layer_id) : std::nullopt;
  if (!index) {
    throw Error(ErrorCode::NotFound,
                fmt::format("open_checkpoint_rows: {} has no Engram at layer "
                            "{}; its config.json lists layers [{}]",
                            model.path().string(), layer_id,
                            fmt::join(engram ? engram->layer_ids : std::vector<int>{}, ", ")));
  }
  const std::int64_t rows = engram->num_embeddings.at(static_cast<std::size_t>(*index));
  const TensorRef values = model.require(engram_tensor_names(layer_id, "embed.weight"));
  const TensorRef scales = model.require(engram_tensor_names(layer_id, "embed.scale"));
  check_tensor(values, {rows, engram->head_dim}, DType::F8E4M3);
  check_tensor(scales, {rows, engram->head_dim / 32}, DType::F8E8M0);
  return std::make_shared<CheckpointRows>(model, layer_id, values, scales);
}

}  // namespace penstock
