#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/matmul_impl.hpp"

// Every sum runs along k in the lanes of one register, lane by lane in rising k, and the lanes are
// added by one fixed tree: the tile's size cannot change a bit. Target attributes instead of
// compiler flags keep the rest of the library free of instructions that a processor may lack.
namespace penstock::detail {
namespace {

#define PENSTOCK_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define PENSTOCK_TARGET_AVX512BF16 __attribute__((target("avx512f,avx512bw,avx512bf16")))

constexpr std::int64_t kAvx2Step = 16;    // bf16 elements of one register
constexpr std::int64_t kAvx512Step = 32;  // likewise

template <typename Value, std::size_t kRows, std::size_t kColumns>
using Grid = std::array<std::array<Value, kColumns>, kRows>;

using TileBody = void (*)(const MatmulTile& tile, float* out);
using TileBodies = Grid<TileBody, kTileRows, kTileColumns>;

constexpr const BF16* row_of(const BF16* base, std::size_t row, std::int64_t stride) {
  return base + static_cast<std::int64_t>(row) * stride;
}

PENSTOCK_TARGET_AVX2 float add_lanes(__m256 lanes) {
  __m128 sum = _mm_add_ps(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  sum = _mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1));
  return _mm_cvtss_f32(sum);
}

// Registers in structs: as template arguments they would lose their alignment.
struct Sum256 {
  __m256 value;
};
struct Sum512 {
  __m512 value;
};
struct Bf16x32 {
  __m512bh value;
};

/// Sixteen bf16 as two registers of float: the odd elements and the even ones.
struct Pair {
  __m256 odd;
  __m256 even;
};

PENSTOCK_TARGET_AVX2 inline __attribute__((always_inline)) Pair widen(const BF16* source) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
  return {
      _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U)))),
      _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
}

// Spelt out at compile time: a loop over the sums would keep them in memory all along.
template <std::size_t kRows, std::size_t kColumns, std::size_t... kAt>
PENSTOCK_TARGET_AVX2 inline __attribute__((always_inline)) void store_sums(
    const Grid<Sum256, kRows, kColumns>& sums, float* out, std::index_sequence<kAt...> /*all*/) {
  ((out[kAt / kColumns * kTileColumns + kAt % kColumns] =
        add_lanes(sums[kAt / kColumns][kAt % kColumns].value)),
   ...);
}

template <std::size_t kRows, std::size_t kColumns>
PENSTOCK_TARGET_AVX2 void multiply_avx2(const MatmulTile& tile, float* out) {
  Grid<Sum256, kRows, kColumns> sums;
  for (auto& row : sums) {
    for (auto& sum : row) sum.value = _mm256_setzero_ps();
  }
  const auto add = [&sums](const BF16* x, std::int64_t x_stride, const BF16* w,
                           std::int64_t w_stride) PENSTOCK_TARGET_AVX2 {
    std::array<Pair, kColumns> right;
    for (std::size_t column = 0; column < kColumns; ++column)
      right[column] = widen(row_of(w, column, w_stride));
    for (std::size_t row = 0; row < kRows; ++row) {
      const Pair left = widen(row_of(x, row, x_stride));
      for (std::size_t column = 0; column < kColumns; ++column) {
        __m256& sum = sums[row][column].value;
        sum = _mm256_fmadd_ps(left.odd, right[column].odd, sum);
        sum = _mm256_fmadd_ps(left.even, right[column].even, sum);
      }
    }
  };
  std::int64_t i = 0;
  for (; i + kAvx2Step <= tile.k; i += kAvx2Step)
    add(tile.x + i, tile.x_stride, tile.w + i, tile.w_stride);
  if (i < tile.k) {
    Grid<BF16, kRows, kAvx2Step> x{};
    Grid<BF16, kColumns, kAvx2Step> w{};
    const auto left_over = static_cast<std::size_t>(tile.k - i);
    for (std::size_t j = 0; j < left_over; ++j) {
      for (std::size_t row = 0; row < kRows; ++row)
        x[row][j] = row_of(tile.x, row, tile.x_stride)[i + static_cast<std::int64_t>(j)];
      for (std::size_t column = 0; column < kColumns; ++column) {
        w[column][j] = row_of(tile.w, column, tile.w_stride)[i + static_cast<std::int64_t>(j)];
      }
    }
    add(x[0].data(), kAvx2Step, w[0].data(), kAvx2Step);
  }
  store_sums(sums, out, std::make_index_sequence<kRows * kColumns>{});
}

PENSTOCK_TARGET_AVX512BF16 inline __attribute__((always_inline)) __m512bh load(const BF16* source,
                                                                               __mmask32 mask) {
  return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, source));
}

// Masked forms, because g++ 12 takes the plain ones for reads of an uninitialised value.
PENSTOCK_TARGET_AVX512BF16 inline __attribute__((always_inline)) float add_lanes(__m512 sum) {
  sum = _mm512_add_ps(sum, _mm512_maskz_shuffle_f32x4(0xFFFF, sum, sum, 0x4E));
  sum = _mm512_add_ps(sum, _mm512_maskz_shuffle_f32x4(0xFFFF, sum, sum, 0xB1));
  sum = _mm512_add_ps(sum, _mm512_maskz_permute_ps(0xFFFF, sum, 0x4E));
  sum = _mm512_add_ps(sum, _mm512_maskz_permute_ps(0xFFFF, sum, 0xB1));
  return _mm512_cvtss_f32(sum);
}

template <std::size_t kRows, std::size_t kColumns, std::size_t... kAt>
PENSTOCK_TARGET_AVX512BF16 inline __attribute__((always_inline)) void store_sums(
    const Grid<Sum512, kRows, kColumns>& sums, float* out, std::index_sequence<kAt...> /*all*/) {
  ((out[kAt / kColumns * kTileColumns + kAt % kColumns] =
        add_lanes(sums[kAt / kColumns][kAt % kColumns].value)),
   ...);
}

template <std::size_t kRows, std::size_t kColumns>
PENSTOCK_TARGET_AVX512BF16 void multiply_avx512bf16(const MatmulTile& tile, float* out) {
  Grid<Sum512, kRows, kColumns> sums;
  for (auto& row : sums) {
    for (auto& sum : row) sum.value = _mm512_setzero_ps();
  }
  for (std::int64_t i = 0; i < tile.k; i += kAvx512Step) {
    const std::int64_t left_over = tile.k - i;
    const __mmask32 mask =
        left_over >= kAvx512Step ? ~__mmask32{0} : (__mmask32{1} << left_over) - 1;
    std::array<Bf16x32, kColumns> right;
    for (std::size_t column = 0; column < kColumns; ++column) {
      right[column].value = load(row_of(tile.w, column, tile.w_stride) + i, mask);
    }
    for (std::size_t row = 0; row < kRows; ++row) {
      const __m512bh left = load(row_of(tile.x, row, tile.x_stride) + i, mask);
      for (std::size_t column = 0; column < kColumns; ++column) {
        __m512& sum = sums[row][column].value;
        sum = _mm512_dpbf16_ps(sum, left, right[column].value);
      }
    }
  }
  store_sums(sums, out, std::make_index_sequence<kRows * kColumns>{});
}

template <std::size_t kRow, std::size_t... kColumn>
constexpr std::array<TileBody, kTileColumns> avx2_row(std::index_sequence<kColumn...>) {
  return {multiply_avx2<kRow, kColumn + 1>...};
}

template <std::size_t kRow, std::size_t... kColumn>
constexpr std::array<TileBody, kTileColumns> avx512_row(std::index_sequence<kColumn...>) {
  return {multiply_avx512bf16<kRow, kColumn + 1>...};
}

using Columns = std::make_index_sequence<kTileColumns>;

constexpr TileBodies kAvx2{avx2_row<1>(Columns{}), avx2_row<2>(Columns{}), avx2_row<3>(Columns{}),
                           avx2_row<4>(Columns{})};
constexpr TileBodies kAvx512{avx512_row<1>(Columns{}), avx512_row<2>(Columns{}),
                             avx512_row<3>(Columns{}), avx512_row<4>(Columns{})};

TileBody pick(const TileBodies& bodies, int rows, int columns) {
  return bodies[static_cast<std::size_t>(rows - 1)][static_cast<std::size_t>(columns - 1)];
}

void tile_avx2(const MatmulTile& tile, int rows, int columns, float* out) {
  pick(kAvx2, rows, columns)(tile, out);
}

void tile_avx512bf16(const MatmulTile& tile, int rows, int columns, float* out) {
  pick(kAvx512, rows, columns)(tile, out);
}

}  // namespace

std::vector<MatmulTileChoice> matmul_x86_tiles() {
  std::vector<MatmulTileChoice> tiles;
  if (__builtin_cpu_supports("avx512bf16") != 0 && __builtin_cpu_supports("avx512bw") != 0) {
    tiles.push_back({tile_avx512bf16, "plain:avx512bf16"});
  }
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) {
    tiles.push_back({tile_avx2, "plain:avx2"});
  }
  return tiles;
}

}  // namespace penstock::detail

#endif  // __x86_64__
