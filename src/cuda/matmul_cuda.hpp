#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"

namespace penstock::cuda {

/// Sizes of out = x w^T. Strides are elements from one row to the next; 0: rows are dense.
///
/// The algorithm is chosen for (tuned_m, tuned_n, k); 0: for (m, n, k). Products whose tuned sizes
/// and k agree run the same tiles in the same order over k, so that a product cut along m or n has
/// the bits of the whole.
struct MatmulSizes {
  std::int64_t m = 0;           ///< Rows of x and out.
  std::int64_t n = 0;           ///< Rows of w, columns of out.
  std::int64_t k = 0;           ///< Columns of x and w.
  std::int64_t x_stride = 0;    ///< At least k.
  std::int64_t w_stride = 0;    ///< At least k.
  std::int64_t out_stride = 0;  ///< At least n.
  std::int64_t tuned_m = 0;
  std::int64_t tuned_n = 0;

  friend bool operator==(const MatmulSizes&, const MatmulSizes&) = default;
};

/// Matrix products of bf16 numbers on one device, by cuBLASLt, which is opened when the first
/// object is made and is never linked.
///
/// The sums are float and are rounded once at the end; k is never split over blocks that add
/// their sums in an unspecified order.
/// Threads: one call at a time.
class Matmul {
 public:
  /// Scratch memory that every call must be given, aligned to 256 bytes.
  static constexpr std::size_t kWorkspaceBytes = std::size_t{16} << 20;

  /// Errors: Unsupported if libcublasLt cannot be opened; the message lists the names tried.
  explicit Matmul(Device device);
  ~Matmul();
  Matmul(Matmul&&) noexcept;
  Matmul& operator=(Matmul&&) noexcept;

  /// Chooses and keeps the algorithm for `sizes`, so that the first product need not. Call it, and
  /// run the product once, before it becomes part of a capture.
  ///
  /// Errors: InvalidArgument for sizes below 0 or strides too small; Unsupported if cuBLASLt has no
  ///         algorithm.
  void prepare(const MatmulSizes& sizes);

  /// Shapes:  x [m, k], w [n, k], out [m, n]. m or n of 0 does nothing; k must not be 0.
  /// Device:  all on the object's device. Pointers aligned to 16 bytes are fastest.
  /// Async:   ordered on `stream`. Legal in capture once the sizes were prepared.
  void run(const MatmulSizes& sizes, const BF16* x, const BF16* w, BF16* out,
           std::span<std::byte> workspace, StreamRef stream);

  /// The same, with sums left in float.
  void run(const MatmulSizes& sizes, const BF16* x, const BF16* w, float* out,
           std::span<std::byte> workspace, StreamRef stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Whether libcublasLt can be opened here.
bool has_matmul();

}  // namespace penstock::cuda
