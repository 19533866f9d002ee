#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "cuda/alignment.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "cuda/matmul_cuda.hpp"
#include "gate/gate_kernels.cuh"
#include "gate/operations.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

using cuda::is_aligned;

/// Tokens whose projection is kept at a time: enough for full speed of the product, few enough that
/// most of it is still in the second-level cache when the sigmoid reads it.
constexpr std::int64_t kTileTokens = 2048;

constexpr int kMostBlocksPerToken = 64;

/// Products of like sizes run alike: the algorithm is chosen for the next power of two of tokens.
std::int64_t tuned_tokens(std::int64_t tokens) {
  return static_cast<std::int64_t>(
      std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(tokens, 1))));
}

MultiplyArguments arguments_of(const Projection& z, const GateTarget& target) {
  MultiplyArguments arguments;
  arguments.z = z.data;
  arguments.z_stride = z.stride;
  arguments.attn = target.attn;
  arguments.attn_stride = target.attn_stride;
  arguments.out = target.out;
  arguments.out_stride = target.out_stride;
  arguments.tokens = z.tokens;
  arguments.rows = z.rows;
  arguments.head_width = static_cast<int>(target.head_width);
  return arguments;
}

bool takes_vectors(const Projection& z, const GateTarget& target) {
  return z.dtype == DType::BF16 && target.head_width == 1 && is_aligned(z.data) &&
         is_aligned(target.attn) && is_aligned(target.out) && z.stride % kVectorElements == 0 &&
         z.rows % kVectorElements == 0 && target.attn_stride % kVectorElements == 0 &&
         target.out_stride % kVectorElements == 0;
}

int blocks_per_token(std::int64_t elements, std::int64_t elements_per_block) {
  return static_cast<int>((elements + elements_per_block - 1) / elements_per_block);
}

cuda::LaunchShape shape_of(std::int64_t tokens, int per_token) {
  const std::int64_t blocks = tokens * per_token;
  if (blocks > std::numeric_limits<int>::max()) {
    throw Error(ErrorCode::InvalidArgument, "GateLinear: too many tokens for one launch");
  }
  return {.blocks = static_cast<int>(blocks), .threads = kGateThreads};
}

class CudaOperations final : public GateOperations {
 public:
  CudaOperations(Device device, std::int64_t output_size)
      : device_(device),
        output_size_(output_size),
        matmul_(device) {
    const cuda::DeviceGuard guard(device);
    cuda::load_kernel(multiply_vectors_kernel);
    cuda::load_kernel(multiply_any_kernel<BF16>);
    cuda::load_kernel(multiply_any_kernel<float>);
    cuda::load_kernel(sigmoid_kernel);
    cuda::load_kernel(multiply_gates_kernel);
  }

  std::size_t product_bytes() const override { return cuda::Matmul::kWorkspaceBytes; }

  std::size_t tile_bytes(std::int64_t tokens, std::int64_t rows) const override {
    return product_bytes() +
           static_cast<std::size_t>(std::min(tokens, kTileTokens) * rows) * sizeof(BF16);
  }

  void product(const MatmulShape& shape, const BF16* x, const BF16* w, void* out, DType out_dtype,
               std::span<std::byte> scratch, StreamRef stream) override {
    if (shape.m == 0 || shape.n == 0) return;
    const std::int64_t tuned_n = shape.n < output_size_ ? output_size_ : shape.n;
    const cuda::MatmulSizes sizes{.m = shape.m,
                                  .n = shape.n,
                                  .k = shape.k,
                                  .x_stride = shape.x_stride,
                                  .w_stride = shape.w_stride,
                                  .out_stride = shape.out_stride,
                                  .tuned_m = tuned_tokens(shape.m),
                                  .tuned_n = tuned_n};
    if (out_dtype == DType::BF16) {
      matmul_.run(sizes, x, w, static_cast<BF16*>(out), scratch, stream);
    } else {
      matmul_.run(sizes, x, w, static_cast<float*>(out), scratch, stream);
    }
  }

  void multiply(const Projection& z, const GateTarget& target, StreamRef stream) override {
    if (z.tokens == 0 || z.rows == 0) return;
    const cuda::DeviceGuard guard(device_);
    MultiplyArguments arguments = arguments_of(z, target);
    if (takes_vectors(z, target) && target.rounding == GateRounding::Once) {
      constexpr std::int64_t kPerBlock =
          std::int64_t{kGateThreads} * kVectorsPerThread * kVectorElements;
      arguments.blocks_per_token = blocks_per_token(z.rows, kPerBlock);
      cuda::launch("multiply_vectors_kernel", multiply_vectors_kernel,
                   shape_of(z.tokens, arguments.blocks_per_token), stream, arguments);
      return;
    }
    arguments.blocks_per_token = std::min(
        kMostBlocksPerToken, blocks_per_token(z.rows * target.head_width, 4LL * kGateThreads));
    const auto shape = shape_of(z.tokens, arguments.blocks_per_token);
    if (z.dtype == DType::BF16 && target.rounding == GateRounding::ThreeTimes) {
      // Two operations of their own, each reading and writing memory.
      auto* gates = const_cast<BF16*>(static_cast<const BF16*>(z.data));  // our own scratch
      cuda::launch("sigmoid_kernel", sigmoid_kernel, shape, stream, gates, z.stride, z.rows,
                   arguments.blocks_per_token);
      cuda::launch("multiply_gates_kernel", multiply_gates_kernel, shape, stream, arguments);
    } else if (z.dtype == DType::BF16) {
      cuda::launch("multiply_any_kernel", multiply_any_kernel<BF16>, shape, stream, arguments);
    } else {
      cuda::launch("multiply_any_kernel", multiply_any_kernel<float>, shape, stream, arguments);
    }
  }

  void gated_product(const GatedProduct& product, StreamRef stream) override {
    const auto scratch = product.tile.first(product_bytes());
    auto* tile = reinterpret_cast<BF16*>(product.tile.data() + product_bytes());
    const GateTarget& target = product.target;
    // Where out is free, it holds the projection until it is gated.
    const bool is_in_out = target.head_width == 1 && target.out != target.attn;
    const std::int64_t step =
        is_in_out && target.rounding == GateRounding::ThreeTimes ? product.tokens : kTileTokens;
    for (std::int64_t token = 0; token < product.tokens; token += step) {
      const std::int64_t tokens = std::min(step, product.tokens - token);
      GateTarget part = target;
      part.attn += token * target.attn_stride;
      part.out += token * target.out_stride;
      const Projection z{.data = is_in_out ? part.out : tile,
                         .dtype = DType::BF16,
                         .stride = is_in_out ? target.out_stride : product.rows,
                         .tokens = tokens,
                         .rows = product.rows};
      this->product({.m = tokens, .n = product.rows, .k = product.hidden, .out_stride = z.stride},
                    product.x + token * product.hidden, product.w, is_in_out ? part.out : tile,
                    DType::BF16, scratch, stream);
      multiply(z, part, stream);
    }
  }

  void copy_rows(const RowCopy& copy, StreamRef stream) override {
    if (copy.rows == 0 || copy.row_bytes == 0) return;
    const cuda::DeviceGuard guard(device_);
    const auto size = [](std::int64_t bytes) { return static_cast<std::size_t>(bytes); };
    PENSTOCK_CUDA_CHECK(cudaMemcpy2DAsync(copy.to, size(copy.to_stride), copy.from,
                                          size(copy.from_stride), size(copy.row_bytes),
                                          size(copy.rows), cudaMemcpyDeviceToDevice, stream.get()));
  }

  void zero(std::span<std::byte> memory, StreamRef stream) override {
    if (memory.empty()) return;
    const cuda::DeviceGuard guard(device_);
    PENSTOCK_CUDA_CHECK(cudaMemsetAsync(memory.data(), 0, memory.size(), stream.get()));
  }

 private:
  Device device_;
  std::int64_t output_size_;
  cuda::Matmul matmul_;
};

}  // namespace

std::unique_ptr<GateOperations> make_gate_operations_cuda(Device device, std::int64_t output_size) {
  return std::make_unique<CudaOperations>(device, output_size);
}

}  // namespace penstock::detail
