#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/matmul.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/gate/gate_linear.hpp"

namespace penstock::detail {

/// Where the results of some weight rows go. Pointers are at the first of their columns.
struct GateTarget {
  const BF16* attn = nullptr;
  std::int64_t attn_stride = 0;
  BF16* out = nullptr;  ///< May be `attn`.
  std::int64_t out_stride = 0;
  std::int64_t head_width = 1;  ///< Columns of attn and out that one weight row governs.
  GateRounding rounding = GateRounding::Once;
};

/// A projection [tokens, rows] in BF16 or F32.
struct Projection {
  const void* data = nullptr;
  DType dtype = DType::F32;
  std::int64_t stride = 0;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
};

/// A product whose projection goes straight into the sigmoid.
struct GatedProduct {
  std::int64_t tokens = 0;
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  const BF16* x = nullptr;
  const BF16* w = nullptr;
  GateTarget target;
  std::span<std::byte> tile;  ///< tile_bytes(tokens, rows).
};

/// Rows of bytes to be copied.
struct RowCopy {
  const std::byte* from = nullptr;
  std::int64_t from_stride = 0;  ///< Bytes, like all here.
  std::byte* to = nullptr;
  std::int64_t to_stride = 0;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;
};

/// What the strategies need of a device. Strategies are written once over this.
///
/// Async: on CUDA everything is ordered on `stream`.
class GateOperations {
 public:
  GateOperations() = default;
  virtual ~GateOperations() = default;
  GateOperations(const GateOperations&) = delete;
  GateOperations& operator=(const GateOperations&) = delete;

  /// Scratch of a plain product.
  virtual std::size_t product_bytes() const = 0;

  /// Scratch of a gated product; never shrinks when tokens or rows grow.
  virtual std::size_t tile_bytes(std::int64_t tokens, std::int64_t rows) const = 0;

  /// out = x w^T into BF16 or F32.
  virtual void product(const MatmulShape& shape, const BF16* x, const BF16* w, void* out,
                       DType out_dtype, std::span<std::byte> scratch, StreamRef stream) = 0;

  /// out = attn * sigmoid(z).
  virtual void multiply(const Projection& z, const GateTarget& target, StreamRef stream) = 0;

  /// out = attn * sigmoid(x w^T).
  virtual void gated_product(const GatedProduct& product, StreamRef stream) = 0;

  virtual void copy_rows(const RowCopy& copy, StreamRef stream) = 0;
  virtual void zero(std::span<std::byte> memory, StreamRef stream) = 0;
};

/// What gates on `device` run on. `output_size` is G, by whose size all products of the gate are
/// tuned on CUDA.
///
/// Errors: Unsupported for CUDA in a build without it, or where cuBLASLt cannot be opened.
std::unique_ptr<GateOperations> make_gate_operations(Device device, std::int64_t output_size);

std::unique_ptr<GateOperations> make_gate_operations_cpu();

/// In a build with CUDA.
std::unique_ptr<GateOperations> make_gate_operations_cuda(Device device, std::int64_t output_size);

}  // namespace penstock::detail
