#include "penstock/core/matmul.hpp"

#include <algorithm>
#include <string>

#include "core/build_config.hpp"
#include "core/matmul_impl.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::MatmulTask;

/// Elements that `rows` rows of `columns` elements span at `stride`.
std::size_t span_of(std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  if (rows == 0 || columns == 0) return 0;
  return static_cast<std::size_t>((rows - 1) * stride + columns);
}

void check_operand(std::string_view name, std::size_t found, std::int64_t rows,
                   std::int64_t columns, std::int64_t stride) {
  if (stride < columns) {
    throw Error(ErrorCode::InvalidArgument, "matmul_bf16: stride of " + std::string(name) + " is " +
                                                std::to_string(stride) + ", needs at least " +
                                                std::to_string(columns));
  }
  const std::size_t needed = span_of(rows, columns, stride);
  if (found < needed) {
    throw Error(ErrorCode::InvalidArgument, "matmul_bf16: " + std::string(name) + " has " +
                                                std::to_string(found) + " elements, needs " +
                                                std::to_string(needed));
  }
}

MatmulShape checked(MatmulShape shape, std::size_t x, std::size_t w, std::size_t out) {
  expects(shape.m >= 0 && shape.n >= 0 && shape.k >= 0, "matmul_bf16: a size is negative");
  if (shape.x_stride == 0) shape.x_stride = shape.k;
  if (shape.w_stride == 0) shape.w_stride = shape.k;
  if (shape.out_stride == 0) shape.out_stride = shape.n;
  check_operand("x", x, shape.m, shape.k, shape.x_stride);
  check_operand("w", w, shape.n, shape.k, shape.w_stride);
  check_operand("out", out, shape.m, shape.n, shape.out_stride);
  return shape;
}

/// The one place that chooses.
MatmulKernel resolve(MatmulKernel kernel) {
  if constexpr (build::has_onednn) {
    if (kernel == MatmulKernel::Automatic && detail::matmul_onednn_keeps_bits()) {
      return MatmulKernel::OneDnn;
    }
  }
  return kernel == MatmulKernel::Automatic ? MatmulKernel::Plain : kernel;
}

void write_zeros(const MatmulTask& task) {
  for (std::int64_t row = 0; row < task.shape.m; ++row) {
    const std::int64_t begin = row * task.shape.out_stride;
    if (task.out_bf16 != nullptr) std::fill_n(task.out_bf16 + begin, task.shape.n, BF16{});
    if (task.out_float != nullptr) std::fill_n(task.out_float + begin, task.shape.n, 0.0F);
  }
}

void run(const MatmulTask& task, MatmulKernel kernel) {
  if (task.shape.m == 0 || task.shape.n == 0) return;
  if (task.shape.k == 0) return write_zeros(task);
  if (resolve(kernel) == MatmulKernel::Plain) return detail::matmul_plain(task);
  if constexpr (build::has_onednn) return detail::matmul_onednn(task);
  throw Error(ErrorCode::Unsupported, "matmul_bf16: built without PENSTOCK_WITH_ONEDNN");
}

}  // namespace

void matmul_bf16(const MatmulShape& shape, std::span<const BF16> x, std::span<const BF16> w,
                 std::span<BF16> out, MatmulKernel kernel) {
  run({.shape = checked(shape, x.size(), w.size(), out.size()),
       .x = x.data(),
       .w = w.data(),
       .out_bf16 = out.data()},
      kernel);
}

void matmul_bf16(const MatmulShape& shape, std::span<const BF16> x, std::span<const BF16> w,
                 std::span<float> out, MatmulKernel kernel) {
  run({.shape = checked(shape, x.size(), w.size(), out.size()),
       .x = x.data(),
       .w = w.data(),
       .out_float = out.data()},
      kernel);
}

std::string matmul_kernel_name(MatmulKernel kernel) {
  if (resolve(kernel) == MatmulKernel::Plain) return std::string(detail::matmul_plain_name());
  if constexpr (build::has_onednn) return detail::matmul_onednn_name();
  return "absent";
}

}  // namespace penstock
