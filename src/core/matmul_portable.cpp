#include <array>
#include <cstdint>

#include "core/matmul_impl.hpp"

namespace penstock::detail {

namespace {

// Running sums side by side, so that compilers can use vector registers without reordering additions.
constexpr int kLanes = 8;

}  // namespace

void matmul_tile_portable(const MatmulTile& tile, int rows, int columns, float* out) {
  for (int row = 0; row < rows; ++row) {
    const BF16* x = tile.x + row * tile.x_stride;
    for (int column = 0; column < columns; ++column) {
      const BF16* w = tile.w + column * tile.w_stride;
      std::array<float, kLanes> sums{};
      std::int64_t i = 0;
      for (; i + kLanes <= tile.k; i += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) {
          sums[static_cast<std::size_t>(lane)] += to_float(x[i + lane]) * to_float(w[i + lane]);
        }
      }
      float sum = 0.0F;
      for (; i < tile.k; ++i) sum += to_float(x[i]) * to_float(w[i]);
      for (const float lane : sums) sum += lane;
      out[row * kTileColumns + column] = sum;
    }
  }
}

}  // namespace penstock::detail
