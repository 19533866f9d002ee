#include "penstock/checkpoint/bucket_primes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/engram_cases.hpp"

namespace penstock {
namespace {

using Primes = std::vector<std::vector<std::int64_t>>;

bool is_prime(std::int64_t n) {
  for (std::int64_t divisor = 2; divisor * divisor <= n; ++divisor) {
    if (n % divisor == 0) return false;
  }
  return n >= 2;
}

/// The rule as it is written: every order starts again at vocab_size and skips what is taken.
Primes naive_primes(const EngramConfig& config) {
  std::vector<std::int64_t> taken;
  Primes primes;
  for (std::size_t layer = 0; layer < config.layer_ids.size(); ++layer) {
    primes.emplace_back();
    for (int order = 2; order <= config.max_ngram_size; ++order) {
      std::int64_t current = config.vocab_size - 1;
      for (int head = 0; head < config.num_heads; ++head) {
        do ++current;
        while (!is_prime(current) || current == 61 || std::ranges::count(taken, current) > 0);
        taken.push_back(current);
        primes.back().push_back(current);
      }
    }
  }
  return primes;
}

TEST(BucketPrimes, AgreeWithGoldenLayouts) {
  const auto cases = testing_support::golden("layouts.json");
  ASSERT_GT(cases.size(), 5U);
  for (const auto& item : cases) {
    const auto config = testing_support::engram_config_of(item.at("config"));
    EXPECT_EQ(bucket_primes(config), item.at("primes").get<Primes>()) << item.at("config");
  }
}

TEST(BucketPrimes, AgreeWithTrialDivision) {
  for (const std::int64_t base : {1, 2, 37, 60, 62, 100, 1000, 65'521, 1'000'003}) {
    const EngramConfig config{.layer_ids = {3, 1},
                              .num_embeddings = {},
                              .max_ngram_size = 4,
                              .num_heads = 5,
                              .head_dim = 32,
                              .vocab_size = base,
                              .pad_token_id = 0,
                              .compressed_vocab_size = 1};
    EXPECT_EQ(bucket_primes(config), naive_primes(config)) << base;
  }
}

}  // namespace
}  // namespace penstock
