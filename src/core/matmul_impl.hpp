#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/dtype.hpp"
#include "penstock/core/matmul.hpp"

// What the halves of matmul_bf16 share. Strides are resolved: never 0.
namespace penstock::detail {

/// A checked product. Exactly one of `out_bf16` and `out_float` is set.
struct MatmulTask {
  MatmulShape shape;
  const BF16* x = nullptr;
  const BF16* w = nullptr;
  BF16* out_bf16 = nullptr;
  float* out_float = nullptr;
};

inline constexpr int kTileRows = 4;     ///< Rows of x that a tile covers at most.
inline constexpr int kTileColumns = 4;  ///< Rows of w.

/// Rows of x and of w that meet in one tile.
struct MatmulTile {
  const BF16* x = nullptr;
  std::int64_t x_stride = 0;
  const BF16* w = nullptr;
  std::int64_t w_stride = 0;
  std::int64_t k = 0;
};

/// Writes the dot products of `rows` x `columns` pairs to out[row * kTileColumns + column].
///
/// Range: rows in 1..kTileRows, columns in 1..kTileColumns. The order of additions in a dot product
///        depends on k only.
using MatmulTileFunction = void (*)(const MatmulTile& tile, int rows, int columns, float* out);

/// A tile function and the name that matmul_kernel_name gives it.
struct MatmulTileChoice {
  MatmulTileFunction tile = nullptr;
  std::string_view name;
};

void matmul_tile_portable(const MatmulTile& tile, int rows, int columns, float* out);

#if defined(__x86_64__)
inline constexpr bool kIsX86 = true;
#else
inline constexpr bool kIsX86 = false;
#endif

/// Every tile function that this x86 processor can run, best first. Defined on x86 only.
std::vector<MatmulTileChoice> matmul_x86_tiles();

/// Blocks, threads and rounding around one tile function.
void matmul_plain(const MatmulTask& task);
std::string_view matmul_plain_name();

// The oneDNN half, in matmul_onednn.cpp. A build without it never calls them.

/// Whether oneDNN's kernel on this processor keeps the bit rules of matmul_bf16.
bool matmul_onednn_keeps_bits();
void matmul_onednn(const MatmulTask& task);
std::string matmul_onednn_name();

}  // namespace penstock::detail
