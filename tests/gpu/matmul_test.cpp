#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cuda/matmul_cuda.hpp"
#include "gpu/gpu_support.hpp"
#include "penstock/core/dtype.hpp"

namespace penstock::gpu {
namespace {

std::vector<BF16> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<BF16> values(count);
  for (auto& value : values) value = to_bf16(uniform(random));
  return values;
}

double dot(const BF16* x, const BF16* w, std::int64_t k) {
  double sum = 0;
  for (std::int64_t i = 0; i < k; ++i) sum += double{to_float(x[i])} * double{to_float(w[i])};
  return sum;
}

#define SKIP_WITHOUT_CUBLASLT() \
  if (!cuda::has_matmul()) GTEST_SKIP() << "libcublasLt cannot be opened here"

TEST(SanitizerMatmul, IsTheProductOfEveryRowWithEveryRow) {
  SKIP_WITHOUT_CUBLASLT();
  cuda::Matmul matmul(kGpu);
  const Array<std::byte> workspace(cuda::Matmul::kWorkspaceBytes);
  const Stream stream;
  for (const auto& [m, n, k] : std::vector<std::array<std::int64_t, 3>>{
           {1, 8, 8}, {16, 64, 128}, {33, 72, 136}, {257, 128, 64}}) {
    // Both rows of w and of out lie 8 elements further apart than they are long.
    const cuda::MatmulSizes sizes{.m = m, .n = n, .k = k, .w_stride = k + 8, .out_stride = n + 8};
    const auto x = random_values(static_cast<std::size_t>(m * k), 1);
    const auto w = random_values(static_cast<std::size_t>(n * (k + 8)), 2);
    const Array<BF16> device_x(x);
    const Array<BF16> device_w(w);
    const Array<BF16> out(static_cast<std::size_t>(m * (n + 8)));
    const Array<float> sums(static_cast<std::size_t>(m * (n + 8)));
    matmul.run(sizes, device_x.data(), device_w.data(), out.data(), workspace.span(), stream.ref());
    matmul.run(sizes, device_x.data(), device_w.data(), sums.data(), workspace.span(),
               stream.ref());
    const auto found = out.read(stream.ref());
    const auto found_sums = sums.read(stream.ref());
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t column = 0; column < n + 8; ++column) {
        const auto at = static_cast<std::size_t>(row * (n + 8) + column);
        const double expected =
            column < n ? dot(x.data() + row * k, w.data() + column * (k + 8), k) : 0.0;
        EXPECT_NEAR(found_sums[at], expected, 1e-4) << m << 'x' << n << 'x' << k;
        EXPECT_NEAR(to_float(found[at]), expected, 0.01 * std::abs(expected) + 1e-4);
      }
    }
  }
}

TEST(Matmul, OfAShardOfTheWeightHasTheBitsOfTheWhole) {
  SKIP_WITHOUT_CUBLASLT();
  cuda::Matmul matmul(kGpu);
  const Array<std::byte> workspace(cuda::Matmul::kWorkspaceBytes);
  const Stream stream;
  constexpr std::int64_t kN = 8192;
  constexpr std::int64_t kK = 2816;
  const Array<BF16> w(random_values(kN * kK, 2));
  for (const std::int64_t m : {16, 512}) {
    const Array<BF16> x(random_values(static_cast<std::size_t>(m * kK), 1));
    const Array<BF16> whole(static_cast<std::size_t>(m * kN));
    const Array<BF16> parts(static_cast<std::size_t>(m * kN));
    const cuda::MatmulSizes sizes{.m = m, .n = kN, .k = kK, .tuned_m = m, .tuned_n = kN};
    matmul.run(sizes, x.data(), w.data(), whole.data(), workspace.span(), stream.ref());
    for (std::int64_t part = 0; part < 4; ++part) {
      cuda::MatmulSizes shard = sizes;
      shard.n = kN / 4;
      shard.out_stride = kN;
      matmul.run(shard, x.data(), w.data() + part * shard.n * kK, parts.data() + part * shard.n,
                 workspace.span(), stream.ref());
    }
    EXPECT_EQ(whole.read(stream.ref()), parts.read(stream.ref())) << m << " rows";
  }
}

}  // namespace
}  // namespace penstock::gpu
