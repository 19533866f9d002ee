#include "engram/ngram_hash_math.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>

namespace penstock::detail {
namespace {

void expect_exact(std::uint64_t value, std::uint32_t divisor) {
  ASSERT_EQ(fast_modulo(value, divisor, modulo_reciprocal(divisor)), value % divisor)
      << value << " % " << divisor;
}

TEST(FastModulo, AgreesWithDivisionAtTheEdges) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  for (const std::uint32_t divisor :
       {2U, 3U, 5U, 7U, 97U, 65537U, 16000057U, 16000889U, 1073741827U, 2147483647U, 2147483648U}) {
    for (std::uint64_t k = 0; k < 70; ++k) {
      expect_exact(k, divisor);
      expect_exact(kMax - k, divisor);
      expect_exact((std::uint64_t{1} << 63) - 1 - k, divisor);
    }
    for (int bit = 0; bit < 64; ++bit) {
      // Multiples of the divisor near each power of two, and both neighbours.
      const std::uint64_t multiple = (std::uint64_t{1} << bit) / divisor * divisor;
      expect_exact(multiple, divisor);
      expect_exact(multiple + 1, divisor);
      expect_exact(multiple + divisor - 1, divisor);
      if (multiple > 0) expect_exact(multiple - 1, divisor);
    }
    const std::uint64_t last_multiple = kMax / divisor * divisor;
    expect_exact(last_multiple, divisor);
    expect_exact(last_multiple - 1, divisor);
  }
}

TEST(FastModulo, AgreesWithDivisionOnRandomNumbers) {
  std::mt19937_64 random(20260913);
  for (int i = 0; i < 200000; ++i) {
    const auto divisor = static_cast<std::uint32_t>(
        2 + (random() & ((std::uint64_t{1} << 31) - 1)) % ((std::uint64_t{1} << 31) - 2));
    const std::uint64_t value = random() >> (random() % 64);
    expect_exact(value, divisor);
    expect_exact(value / divisor * divisor, divisor);
  }
}

TEST(FastModulo, IsAConstantExpression) {
  static_assert(fast_modulo(7688152823518264938U, 16000057U, modulo_reciprocal(16000057U)) ==
                11404318U);
}

}  // namespace
}  // namespace penstock::detail
