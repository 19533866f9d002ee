#include <algorithm>
#include <array>
#include <cstdint>

#include "core/matmul_impl.hpp"
#include "core/round_up.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock::detail {
namespace {

/// Bytes of w that one block keeps in the second-level cache while all rows of x pass by.
constexpr std::int64_t kBlockBytes = 384LL * 1024;

const MatmulTileChoice& choice() {
  static const MatmulTileChoice chosen = [] {
    if constexpr (kIsX86) {
      const auto tiles = matmul_x86_tiles();
      if (!tiles.empty()) return tiles.front();
    }
    return MatmulTileChoice{matmul_tile_portable, "plain:portable"};
  }();
  return chosen;
}

void store(const MatmulTask& task, std::int64_t row, std::int64_t column, int columns,
           const float* sums) {
  const std::int64_t begin = row * task.shape.out_stride + column;
  if (task.out_float != nullptr) {
    std::copy_n(sums, columns, task.out_float + begin);
  } else {
    std::transform(sums, sums + columns, task.out_bf16 + begin, [](float v) { return to_bf16(v); });
  }
}

/// Rows [m_begin, m_end) of x against rows [n_begin, n_end) of w.
void multiply_block(const MatmulTask& task, std::int64_t m_begin, std::int64_t m_end,
                    std::int64_t n_begin, std::int64_t n_end) {
  const MatmulTileFunction tile = choice().tile;
  const MatmulShape& shape = task.shape;
  std::array<float, std::size_t{kTileRows} * kTileColumns> sums{};
  for (std::int64_t m = m_begin; m < m_end; m += kTileRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kTileRows, m_end - m));
    for (std::int64_t n = n_begin; n < n_end; n += kTileColumns) {
      const int columns = static_cast<int>(std::min<std::int64_t>(kTileColumns, n_end - n));
      tile({task.x + m * shape.x_stride, shape.x_stride, task.w + n * shape.w_stride,
            shape.w_stride, shape.k},
           rows, columns, sums.data());
      for (int row = 0; row < rows; ++row) {
        store(task, m + row, n, columns, sums.data() + std::ptrdiff_t{row} * kTileColumns);
      }
    }
  }
}

}  // namespace

std::string_view matmul_plain_name() {
  return choice().name;
}

void matmul_plain(const MatmulTask& task) {
  const MatmulShape& shape = task.shape;
  // Blocks of w; rows of x are cut as well when w alone does not feed every thread.
  const std::int64_t block = std::max<std::int64_t>(
      kTileColumns, kBlockBytes / (2 * shape.k) / kTileColumns * kTileColumns);
  const std::int64_t n_blocks = (shape.n + block - 1) / block;
  const std::int64_t wanted = 4LL * parallel_threads();
  const std::int64_t m_cuts =
      std::clamp<std::int64_t>(wanted / n_blocks, 1, (shape.m + kTileRows - 1) / kTileRows);
  const std::int64_t m_step = round_up((shape.m + m_cuts - 1) / m_cuts, std::int64_t{kTileRows});
  const std::int64_t m_blocks = (shape.m + m_step - 1) / m_step;
  parallel_for(n_blocks * m_blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t m = i % m_blocks * m_step;
      const std::int64_t n = i / m_blocks * block;
      multiply_block(task, m, std::min(shape.m, m + m_step), n, std::min(shape.n, n + block));
    }
  });
}

}  // namespace penstock::detail
