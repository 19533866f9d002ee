#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/to_size.hpp"
#include "gate/operations.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock::detail {
namespace {

/// Floats of the projection that a gated product keeps at a time: they stay in the second-level
/// cache between the product that writes them and the sigmoid that reads them.
constexpr std::int64_t kTileFloats = 64LL * 1024;
constexpr std::int64_t kTileTokens = 256;

constexpr std::int64_t kGrainElements = 4096;  // of a row loop that is worth a thread

/// Exact to float rounding on both sides: for negative z the numerator keeps small results that
/// 1 / (1 + exp(-z)) would lose to overflow.
float sigmoid(float z) {
  if (z >= 0.0F) return 1.0F / (1.0F + std::exp(-z));
  const float e = std::exp(z);
  return e / (1.0F + e);
}

float widen(float value) {
  return value;
}

float widen(BF16 value) {
  return to_float(value);
}

float gate_of(float z, GateRounding rounding) {
  switch (rounding) {
    case GateRounding::Once: return sigmoid(z);
    case GateRounding::ThreeTimes: return to_float(to_bf16(sigmoid(to_float(to_bf16(z)))));
  }
  return 0.0F;
}

template <typename Value>
void multiply_row(const Value* z, std::int64_t rows, const BF16* attn, BF16* out,
                  const GateTarget& target) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const float gate = gate_of(widen(z[row]), target.rounding);
    const std::int64_t begin = row * target.head_width;
    for (std::int64_t i = begin; i < begin + target.head_width; ++i) {
      out[i] = to_bf16(to_float(attn[i]) * gate);
    }
  }
}

std::int64_t row_grain(std::int64_t elements_per_row) {
  return std::max<std::int64_t>(1, kGrainElements / std::max<std::int64_t>(1, elements_per_row));
}

template <typename Value>
void multiply_rows(const Projection& z, const GateTarget& target) {
  const auto* values = static_cast<const Value*>(z.data);
  parallel_for(z.tokens, row_grain(z.rows), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      multiply_row(values + token * z.stride, z.rows, target.attn + token * target.attn_stride,
                   target.out + token * target.out_stride, target);
    }
  });
}

struct TileSizes {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
};

TileSizes tile_sizes(std::int64_t tokens, std::int64_t rows) {
  const std::int64_t tile_tokens = std::clamp<std::int64_t>(tokens, 1, kTileTokens);
  return {tile_tokens, std::min(rows, kTileFloats / tile_tokens)};
}

class CpuOperations final : public GateOperations {
 public:
  std::size_t product_bytes() const override { return 0; }

  std::size_t tile_bytes(std::int64_t tokens, std::int64_t rows) const override {
    return to_size(std::min(kTileFloats, tokens * rows)) * sizeof(float);
  }

  void product(const MatmulShape& shape, const BF16* x, const BF16* w, void* out, DType out_dtype,
               std::span<std::byte> /*scratch*/, StreamRef /*stream*/) override {
    if (shape.m == 0 || shape.n == 0) return;
    const auto span = [](const auto* data, std::int64_t rows, std::int64_t columns,
                         std::int64_t stride) {
      const std::int64_t step = stride == 0 ? columns : stride;
      return std::span(data, to_size((rows - 1) * step + columns));
    };
    const auto operand_x = span(x, shape.m, shape.k, shape.x_stride);
    const auto operand_w = span(w, shape.n, shape.k, shape.w_stride);
    const std::int64_t step = shape.out_stride == 0 ? shape.n : shape.out_stride;
    const std::size_t count = to_size((shape.m - 1) * step + shape.n);
    if (out_dtype == DType::BF16) {
      matmul_bf16(shape, operand_x, operand_w, std::span(static_cast<BF16*>(out), count));
    } else {
      matmul_bf16(shape, operand_x, operand_w, std::span(static_cast<float*>(out), count));
    }
  }

  void multiply(const Projection& z, const GateTarget& target, StreamRef /*stream*/) override {
    if (z.dtype == DType::BF16) {
      multiply_rows<BF16>(z, target);
    } else {
      multiply_rows<float>(z, target);
    }
  }

  void gated_product(const GatedProduct& product, StreamRef stream) override {
    const TileSizes tile = tile_sizes(product.tokens, product.rows);
    auto* z = reinterpret_cast<float*>(product.tile.data());
    for (std::int64_t token = 0; token < product.tokens; token += tile.tokens) {
      const std::int64_t tokens = std::min(tile.tokens, product.tokens - token);
      for (std::int64_t row = 0; row < product.rows; row += tile.rows) {
        const std::int64_t rows = std::min(tile.rows, product.rows - row);
        this->product({.m = tokens, .n = rows, .k = product.hidden},
                      product.x + token * product.hidden, product.w + row * product.hidden, z,
                      DType::F32, {}, stream);
        GateTarget target = product.target;
        target.attn += token * target.attn_stride + row * target.head_width;
        target.out += token * target.out_stride + row * target.head_width;
        multiply({z, DType::F32, rows, tokens, rows}, target, stream);
      }
    }
  }

  void copy_rows(const RowCopy& copy, StreamRef /*stream*/) override {
    if (copy.row_bytes == 0) return;
    parallel_for(copy.rows, row_grain(copy.row_bytes / 8),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     std::memcpy(copy.to + row * copy.to_stride, copy.from + row * copy.from_stride,
                                 to_size(copy.row_bytes));
                   }
                 });
  }

  void zero(std::span<std::byte> memory, StreamRef /*stream*/) override {
    if (!memory.empty()) std::memset(memory.data(), 0, memory.size());
  }
};

}  // namespace

std::unique_ptr<GateOperations> make_gate_operations_cpu() {
  return std::make_unique<CpuOperations>();
}

}  // namespace penstock::detail
