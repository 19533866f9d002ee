#include "penstock/engram/hash_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "penstock/core/error.hpp"
#include "support/engram_cases.hpp"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::engram_config_of;
using testing_support::golden;
using testing_support::released_config;
using testing_support::small_config;

TEST(NumpyIntegers, AgreesWithNumpy) {
  const auto cases = golden("rng.json");
  ASSERT_GT(cases.size(), 100U);
  for (const auto& item : cases) {
    const auto expected = item.at("values").get<std::vector<std::int64_t>>();
    EXPECT_EQ(numpy_integers(item.at("seed"), item.at("high"), static_cast<int>(expected.size())),
              expected)
        << "seed " << item.at("seed") << ", high " << item.at("high");
  }
}

TEST(NumpyIntegers, RefusesAnEmptyRange) {
  EXPECT_THROW(numpy_integers(1, 0, 1), Error);
  EXPECT_THROW(numpy_integers(1, -5, 1), Error);
  EXPECT_THROW(numpy_integers(1, 5, -1), Error);
  EXPECT_TRUE(numpy_integers(1, 5, 0).empty());
}

TEST(HashLayout, AgreesWithGoldenLayouts) {
  const auto cases = golden("layouts.json");
  ASSERT_GT(cases.size(), 5U);
  for (const auto& item : cases) {
    const HashLayout layout(engram_config_of(item.at("config")));
    EXPECT_EQ(nlohmann::json(layout.primes), item.at("primes")) << item.at("config");
    EXPECT_EQ(nlohmann::json(layout.offsets), item.at("offsets")) << item.at("config");
    EXPECT_EQ(nlohmann::json(layout.multipliers), item.at("multipliers")) << item.at("config");
    EXPECT_EQ(nlohmann::json(layout.row_counts), item.at("config").at("engram_num_embeddings"));
  }
}

TEST(HashLayout, HasTheRowsOfTheReleasedModel) {
  const HashLayout layout(released_config());
  EXPECT_THAT(layout.row_counts, ElementsAre(384006168, 384016682));
  EXPECT_EQ(layout.num_layers(), 2);
  EXPECT_EQ(layout.num_columns(), 24);
  EXPECT_THAT(layout.multipliers[0],
              ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(layout.multipliers[1],
              ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
}

TEST(HashLayout, UsesEveryPrimeOnce) {
  const HashLayout layout(small_config());
  std::set<std::int64_t> seen;
  for (const auto& layer : layout.primes) seen.insert(layer.begin(), layer.end());
  EXPECT_EQ(seen.size(), 12U);
}

TEST(HashLayout, ProductsStayBelowTwoToThe63ForAnyCompressedSize) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t size :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{99092}, kMax / 2, kMax}) {
    auto config = small_config();
    config.compressed_vocab_size = size;
    for (const auto& layer : HashLayout(config).multipliers) {
      for (const std::int64_t multiplier : layer) {
        EXPECT_EQ(multiplier % 2, 1);
        EXPECT_GE(multiplier, 1);
        EXPECT_LE(multiplier, kMax / std::max<std::int64_t>(1, size - 1)) << size;
      }
    }
  }
}

TEST(HashLayout, RefusesAbsurdConfigurations) {
  using Change = void (*)(EngramConfig&);
  const std::vector<std::pair<Change, const char*>> cases{
      {[](EngramConfig& c) { c.layer_ids.clear(); }, "found no layer ids"},
      {[](EngramConfig& c) { c.layer_ids = {-1}; }, "layer id -1"},
      {[](EngramConfig& c) { c.max_ngram_size = 1; }, "max_ngram_size 1"},
      {[](EngramConfig& c) { c.num_heads = 0; }, "0 heads"},
      {[](EngramConfig& c) { c.vocab_size = 0; }, "vocab_size 0"},
      {[](EngramConfig& c) { c.vocab_size = std::int64_t{1} << 40; }, "vocab_size 1099511627776"},
      {[](EngramConfig& c) { c.compressed_vocab_size = 0; }, "compressed_vocab_size 0"},
      {[](EngramConfig& c) { c.pad_token_id = -1; }, "pad_token_id -1"},
      {[](EngramConfig& c) { c.vocab_size = (1 << 29) + 1; }, "at most 2^31 rows"},
      {[](EngramConfig& c) { c.vocab_size = 536870910; }, "layer 0 has"},
      {[](EngramConfig& c) { c.num_heads = std::numeric_limits<int>::max(); }, "2^31 rows"},
      {[](EngramConfig& c) {
         c.max_ngram_size = std::numeric_limits<int>::max();
         c.num_heads = std::numeric_limits<int>::max();
       },
       "2^31 rows"}};
  for (const auto& [change, message] : cases) {
    auto config = small_config();
    change(config);
    EXPECT_THAT([&] { HashLayout layout(config); }, ThrowsMessage<Error>(HasSubstr(message)));
  }
}

TEST(HashLayout, AcceptsTheSmallestBase) {
  auto config = small_config();
  config.vocab_size = 1;
  const HashLayout layout(config);
  EXPECT_THAT(layout.primes[0], ElementsAre(2, 3, 5, 7));
  EXPECT_THAT(layout.offsets[0], ElementsAre(0, 2, 5, 10));
}

}  // namespace
}  // namespace penstock
