#include "penstock/core/matmul.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/matmul_impl.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock {
namespace {

std::vector<BF16> random_bf16(std::int64_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::vector<BF16> values(static_cast<std::size_t>(count));
  for (auto& value : values) value = to_bf16(normal(generator));
  return values;
}

double exact(const BF16* x, const BF16* w, std::int64_t k) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < k; ++i) sum += double{to_float(x[i])} * double{to_float(w[i])};
  return sum;
}

/// A bound on |float sum - exact|: k roundings of at most 2^-24 of the sum of magnitudes.
double sum_bound(const BF16* x, const BF16* w, std::int64_t k) {
  double magnitude = 0.0;
  for (std::int64_t i = 0; i < k; ++i) {
    magnitude += std::abs(double{to_float(x[i])} * double{to_float(w[i])});
  }
  return magnitude * static_cast<double>(k + 1) * std::ldexp(1.0, -24) + 1e-37;
}

std::vector<MatmulKernel> kernels() {
  std::vector<MatmulKernel> all{MatmulKernel::Automatic, MatmulKernel::Plain};
  if (matmul_kernel_name(MatmulKernel::OneDnn) != "absent") all.push_back(MatmulKernel::OneDnn);
  return all;
}

TEST(Matmul, AgreesWithExactSumsAtEveryEdge) {
  for (const MatmulKernel kernel : kernels()) {
    for (const std::int64_t m : {0, 1, 3, 4, 5, 33}) {
      for (const std::int64_t n : {0, 1, 2, 4, 7, 32}) {
        for (const std::int64_t k : {0, 1, 15, 16, 31, 32, 33, 100}) {
          const auto x = random_bf16(m * k, 1);
          const auto w = random_bf16(n * k, 2);
          std::vector<float> out(static_cast<std::size_t>(m * n), -1.0F);
          matmul_bf16({.m = m, .n = n, .k = k}, x, w, std::span<float>(out), kernel);
          for (std::int64_t row = 0; row < m; ++row) {
            for (std::int64_t column = 0; column < n; ++column) {
              const BF16* a = x.data() + row * k;
              const BF16* b = w.data() + column * k;
              EXPECT_NEAR(out[static_cast<std::size_t>(row * n + column)], exact(a, b, k),
                          sum_bound(a, b, k))
                  << matmul_kernel_name(kernel) << " m " << m << " n " << n << " k " << k;
            }
          }
        }
      }
    }
  }
}

TEST(Matmul, RoundsTheFloatSumOnce) {
  const auto x = random_bf16(std::int64_t{5} * 70, 3);
  const auto w = random_bf16(std::int64_t{9} * 70, 4);
  std::vector<float> sums(45);
  std::vector<BF16> rounded(45);
  for (const MatmulKernel kernel : kernels()) {
    matmul_bf16({.m = 5, .n = 9, .k = 70}, x, w, std::span<float>(sums), kernel);
    matmul_bf16({.m = 5, .n = 9, .k = 70}, x, w, std::span<BF16>(rounded), kernel);
    for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(rounded[i], to_bf16(sums[i]));
  }
}

TEST(Matmul, KeepsAnElementsBitsOverCutsOfMAndN) {
  constexpr std::int64_t m = 37;
  constexpr std::int64_t n = 103;
  constexpr std::int64_t k = 2820;  // long enough that kernels differ in the order of their sums
  const auto x = random_bf16(m * k, 5);
  const auto w = random_bf16(n * k, 6);
  for (const MatmulKernel kernel : {MatmulKernel::Automatic, MatmulKernel::Plain}) {
    std::vector<float> whole(m * n);
    matmul_bf16({.m = m, .n = n, .k = k}, x, w, std::span<float>(whole), kernel);
    for (const std::int64_t parts : {2, 3, 8, 40, 103}) {
      std::vector<float> cut(m * n, -1.0F);
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t begin = part * n / parts;
        const std::int64_t count = (part + 1) * n / parts - begin;
        matmul_bf16({.m = m, .n = count, .k = k, .out_stride = n}, x,
                    std::span(w).subspan(static_cast<std::size_t>(begin * k)),
                    std::span(cut).subspan(static_cast<std::size_t>(begin)), kernel);
      }
      EXPECT_EQ(cut, whole) << parts << " parts of n, " << matmul_kernel_name(kernel);
    }
    for (std::int64_t row = 0; row < m; ++row) {
      std::vector<float> one(n);
      matmul_bf16({.m = 1, .n = n, .k = k}, std::span(x).subspan(static_cast<std::size_t>(row * k)),
                  w, std::span<float>(one), kernel);
      EXPECT_TRUE(std::equal(one.begin(), one.end(), whole.begin() + row * n)) << "row " << row;
    }
  }
}

TEST(Matmul, StridesDoNotChangeBits) {
  constexpr std::int64_t m = 9;
  constexpr std::int64_t n = 21;
  constexpr std::int64_t k = 2816;
  constexpr std::int64_t step = k + 32;
  const auto x = random_bf16(m * step, 5);
  const auto w = random_bf16(n * step, 6);
  const auto dense = [](const std::vector<BF16>& strided, std::int64_t rows) {
    std::vector<BF16> copy;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto from = strided.begin() + row * step;
      copy.insert(copy.end(), from, from + k);
    }
    return copy;
  };
  std::vector<float> expected(m * n);
  matmul_bf16({.m = m, .n = n, .k = k}, dense(x, m), dense(w, n), std::span<float>(expected));
  std::vector<float> found(expected.size());
  matmul_bf16({.m = m, .n = n, .k = k, .x_stride = step}, x, dense(w, n), std::span<float>(found));
  EXPECT_EQ(found, expected) << "x";
  matmul_bf16({.m = m, .n = n, .k = k, .w_stride = step}, dense(x, m), w, std::span<float>(found));
  EXPECT_EQ(found, expected) << "w";
  std::vector<BF16> rounded(m * 24);
  matmul_bf16({.m = m, .n = n, .k = k, .out_stride = 24}, dense(x, m), dense(w, n),
              std::span<BF16>(rounded));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(rounded[i / n * 24 + i % n], to_bf16(expected[i])) << "out " << i;
  }
}

TEST(Matmul, DoesNotDependOnTheNumberOfThreads) {
  const int before = parallel_threads();
  const auto x = random_bf16(std::int64_t{64} * 200, 7);
  const auto w = random_bf16(std::int64_t{300} * 200, 8);
  std::vector<float> one(19200);
  std::vector<float> many(one.size());
  set_parallel_threads(1);
  matmul_bf16({.m = 64, .n = 300, .k = 200}, x, w, std::span<float>(one));
  set_parallel_threads(4);
  matmul_bf16({.m = 64, .n = 300, .k = 200}, x, w, std::span<float>(many));
  set_parallel_threads(before);
  EXPECT_EQ(one, many);
}

TEST(Matmul, ReadsAndWritesStridedRowsOnly) {
  const auto x = random_bf16(std::int64_t{3} * 50, 9);
  const auto w = random_bf16(std::int64_t{5} * 60, 10);
  std::vector<float> out(std::size_t{3} * 8, 42.0F);
  for (const MatmulKernel kernel : kernels()) {
    matmul_bf16({.m = 3, .n = 5, .k = 40, .x_stride = 50, .w_stride = 60, .out_stride = 8}, x, w,
                std::span<float>(out), kernel);
    for (std::int64_t row = 0; row < 3; ++row) {
      for (std::int64_t column = 0; column < 8; ++column) {
        const float found = out[static_cast<std::size_t>(row * 8 + column)];
        if (column >= 5) {
          EXPECT_EQ(found, 42.0F);
        } else {
          const BF16* a = x.data() + row * 50;
          const BF16* b = w.data() + column * 60;
          EXPECT_NEAR(found, exact(a, b, 40), sum_bound(a, b, 40));
        }
      }
    }
  }
}

TEST(Matmul, EveryTileFunctionAgreesWithExactSums) {
  std::vector<detail::MatmulTileChoice> tiles{{detail::matmul_tile_portable, "portable"}};
  if constexpr (detail::kIsX86) {
    for (const auto& tile : detail::matmul_x86_tiles()) tiles.push_back(tile);
  }
  for (const std::int64_t k : {1, 17, 96, 333}) {
    const auto x = random_bf16(4 * k, 11);
    const auto w = random_bf16(4 * k, 12);
    for (const auto& tile : tiles) {
      std::vector<float> whole(16);
      tile.tile({x.data(), k, w.data(), k, k}, 4, 4, whole.data());
      for (int rows = 1; rows <= 4; ++rows) {
        for (int columns = 1; columns <= 4; ++columns) {
          std::vector<float> out(16, -1.0F);
          tile.tile({x.data(), k, w.data(), k, k}, rows, columns, out.data());
          for (int i = 0; i < rows * columns; ++i) {
            const int row = i / columns;
            const int column = i % columns;
            const auto at = static_cast<std::size_t>(row) * 4 + static_cast<std::size_t>(column);
            EXPECT_EQ(out[at], whole[at]) << tile.name;
            const BF16* a = x.data() + row * k;
            const BF16* b = w.data() + column * k;
            EXPECT_NEAR(out[at], exact(a, b, k), sum_bound(a, b, k)) << tile.name;
          }
        }
      }
    }
  }
}

TEST(Matmul, RefusesSpansAndStridesThatDoNotFit) {
  const std::vector<BF16> x(12);
  const std::vector<BF16> w(12);
  std::vector<float> out(9, 1.0F);
  const std::span<float> all(out);
  EXPECT_THROW(matmul_bf16({.m = 4, .n = 3, .k = 4}, x, w, all), Error);
  EXPECT_THROW(matmul_bf16({.m = 3, .n = 4, .k = 4}, x, w, all), Error);
  EXPECT_THROW(matmul_bf16({.m = 3, .n = 3, .k = 4}, x, w, all.first(8)), Error);
  EXPECT_THROW(matmul_bf16({.m = 3, .n = 3, .k = 4, .x_stride = 3}, x, w, all), Error);
  EXPECT_THROW(matmul_bf16({.m = -1, .n = 3, .k = 4}, x, w, all), Error);
  for (const float value : out) EXPECT_EQ(value, 1.0F);
}

TEST(Matmul, NamesItsKernel) {
  EXPECT_TRUE(matmul_kernel_name(MatmulKernel::Plain).starts_with("plain:"));
  EXPECT_NE(matmul_kernel_name(), "absent");
}

}  // namespace
}  // namespace penstock
