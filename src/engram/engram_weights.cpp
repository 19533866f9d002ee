#include "penstock/engram/engram_weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string>

#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock {
namespace {

void expect_shape(const TensorRef& tensor, const std::vector<std::int64_t>& needed) {
  if (tensor.info.shape == needed) return;
  throw Error(
      ErrorCode::CorruptFile,
      fmt::format("{}: {} has shape [{}], config.json needs [{}]", tensor.file.string(),
                  tensor.info.name, fmt::join(tensor.info.shape, ", "), fmt::join(needed, ", ")));
}

[[noreturn]] void refuse_dtype(const TensorRef& tensor, const char* readable) {
  throw Error(ErrorCode::Unsupported,
              fmt::format("{}: {} is {}, only {} can be read", tensor.file.string(),
                          tensor.info.name, to_string(tensor.info.dtype), readable));
}

template <typename T>
T element(std::span<const std::byte> bytes, std::size_t i) {
  T value;  // memcpy: tensors in a file are not aligned
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

std::vector<BF16> read_bf16(const TensorRef& tensor) {
  std::vector<BF16> out(static_cast<std::size_t>(tensor.info.num_elements()));
  if (tensor.info.dtype == DType::BF16) {
    std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
    return out;
  }
  if (tensor.info.dtype != DType::F32) refuse_dtype(tensor, "BF16 and F32");
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_bf16(element<float>(tensor.bytes, i));
  return out;
}

/// The factor of a block; ue8m0 bytes are exponent fields, as in a table row.
float block_scale(const TensorRef& scales, std::size_t i) {
  if (scales.info.dtype == DType::F32) return element<float>(scales.bytes, i);
  return scale_to_float(element<std::uint8_t>(scales.bytes, i));
}

struct BlockGrid {
  std::int64_t rows = 0;  ///< Rows of a block.
  std::int64_t columns = 0;
};

std::int64_t blocks_of(std::int64_t length, std::int64_t block) {
  return (length + block - 1) / block;
}

std::vector<BF16> dequantize_blocks(const TensorRef& codes, const TensorRef& scales,
                                    const BlockGrid& block) {
  const std::int64_t rows = codes.info.shape[0];
  const std::int64_t columns = codes.info.shape[1];
  const std::int64_t scales_per_row = blocks_of(columns, block.columns);
  if (scales.info.dtype != DType::F32 && scales.info.dtype != DType::F8E8M0 &&
      scales.info.dtype != DType::U8) {
    refuse_dtype(scales, "F8_E8M0, U8 and F32");
  }
  std::vector<BF16> out(static_cast<std::size_t>(rows * columns));
  constexpr std::int64_t kRowsPerRange = 16;
  parallel_for(rows, kRowsPerRange, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t at = row * columns + column;
        const std::int64_t scale_at = row / block.rows * scales_per_row + column / block.columns;
        const float code =
            e4m3_to_float(static_cast<std::uint8_t>(codes.bytes[static_cast<std::size_t>(at)]));
        out[static_cast<std::size_t>(at)] =
            to_bf16(code * block_scale(scales, static_cast<std::size_t>(scale_at)));
      }
    }
  });
  return out;
}

std::vector<BF16> read_projection(const ModelDir& model, int layer_id, std::int64_t outputs,
                                  std::int64_t inputs) {
  const TensorRef codes = model.require(engram_tensor_names(layer_id, "wkv.weight"));
  expect_shape(codes, {outputs, inputs});
  if (codes.info.dtype != DType::F8E4M3) return read_bf16(codes);
  const ModelConfig& config = model.config();
  const BlockGrid block{config.weight_block_rows, config.weight_block_columns};
  if (block.rows < 1 || block.columns < 1) {
    throw Error(ErrorCode::CorruptFile,
                fmt::format("{}: {} is F8_E4M3, so config.json needs "
                            "quantization_config.weight_block_size; it has none",
                            codes.file.string(), codes.info.name));
  }
  const TensorRef scales = model.require(engram_tensor_names(layer_id, "wkv.scale"));
  expect_shape(scales, {blocks_of(outputs, block.rows), blocks_of(inputs, block.columns)});
  return dequantize_blocks(codes, scales, block);
}

std::vector<BF16> read_norm_weight(const ModelDir& model, int layer_id, const char* part,
                                   std::int64_t copies, std::int64_t dim) {
  const TensorRef tensor = model.require(engram_tensor_names(layer_id, part));
  expect_shape(tensor, {copies, dim});
  return read_bf16(tensor);
}

}  // namespace

EngramWeights load_engram_weights(const ModelDir& model, int layer_id) {
  const ModelConfig& config = model.config();
  if (!config.engram || !config.engram->hash_layer_index(layer_id)) {
    throw Error(
        ErrorCode::NotFound,
        fmt::format(
            "{}: layer {} has no Engram; engram_layer_ids is [{}]", model.path().string(), layer_id,
            config.engram ? fmt::format("{}", fmt::join(config.engram->layer_ids, ", ")) : ""));
  }
  if (config.hidden_size < 1) {
    throw Error(ErrorCode::CorruptFile,
                fmt::format("{}: config.json needs hidden_size for the Engram of layer {}",
                            model.path().string(), layer_id));
  }
  EngramWeights weights;
  weights.hc_mult = config.hc_mult;
  weights.dim = static_cast<int>(config.hidden_size);
  weights.row_width = std::int64_t{config.engram->num_columns()} * config.engram->head_dim;
  weights.eps = static_cast<float>(config.rms_norm_eps);
  const std::int64_t outputs = std::int64_t{weights.hc_mult + 1} * weights.dim;
  weights.wkv = read_projection(model, layer_id, outputs, weights.row_width);
  weights.q_weight = read_norm_weight(model, layer_id, "q_weight", weights.hc_mult, weights.dim);
  weights.k_weight = read_norm_weight(model, layer_id, "k_weight", weights.hc_mult, weights.dim);
  return weights;
}

}  // namespace penstock
