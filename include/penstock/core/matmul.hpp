#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "penstock/core/dtype.hpp"

namespace penstock {

/// Sizes of out = x w^T. Strides are elements from one row to the next; 0: rows are dense.
struct MatmulShape {
  std::int64_t m = 0;           ///< Rows of x and out.
  std::int64_t n = 0;           ///< Rows of w, columns of out.
  std::int64_t k = 0;           ///< Columns of x and w.
  std::int64_t x_stride = 0;    ///< At least k.
  std::int64_t w_stride = 0;    ///< At least k.
  std::int64_t out_stride = 0;  ///< At least n.
};

/// Which code computes a product on the CPU.
enum class MatmulKernel {
  Automatic,  ///< OneDnn where it was built in and keeps the bit rules below, else Plain.
  Plain,      ///< Penstock's own loops, with AVX-512-BF16 or AVX2 where the processor has it.
  OneDnn,     ///< oneDNN; a processor without bf16 products computes in float.
};

/// out = x w^T on the CPU, in float, rounded once at the end.
///
/// Shapes:  x [m, k], w [n, k] (the layout of a checkpoint), out [m, n].
/// Range:   m, n or k of 0 is legal; k = 0 writes zeros. Not-a-number results are 0x7FC0.
///          AVX-512-BF16 products take subnormal inputs and sums as zero.
/// Threads: uses parallel_for, so set_parallel_threads() of the calling thread bounds it.
/// Errors:  InvalidArgument for spans or strides that do not fit; Unsupported for OneDnn in a build
///          without it.
/// Cost:    no allocation with Plain.
///
/// Bits: with Plain, and with Automatic, an element depends on its row of x, its row of w and k
/// only. So a product cut along m or n, at any place and over any number of threads, has the bits
/// of the whole. Cutting k changes bits. Another processor may give other bits.
void matmul_bf16(const MatmulShape& shape, std::span<const BF16> x, std::span<const BF16> w,
                 std::span<BF16> out, MatmulKernel kernel = MatmulKernel::Automatic);

/// The same, with sums left in float.
void matmul_bf16(const MatmulShape& shape, std::span<const BF16> x, std::span<const BF16> w,
                 std::span<float> out, MatmulKernel kernel = MatmulKernel::Automatic);

/// What `kernel` means on this machine: "plain:avx512bf16", "plain:avx2", "plain:portable",
/// "onednn:<implementation>", or "absent" for OneDnn in a build without it.
std::string matmul_kernel_name(MatmulKernel kernel = MatmulKernel::Automatic);

}  // namespace penstock
