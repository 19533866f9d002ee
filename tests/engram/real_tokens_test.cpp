#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/sha256.hpp"
#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/ngram_hasher.hpp"
#include "support/engram_cases.hpp"

// The public DeepSeek-V3 tokenizer and 1.4 million tokens of running text, against digests that two
// other implementations agree on.
namespace penstock {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::golden;
using testing_support::released_config;

constexpr auto* kTokenizer = PENSTOCK_TEST_DATA "/golden/deepseek_v3_tokenizer.json.xz";

std::string digest_of(std::span<const std::int32_t> numbers) {
  return to_hex(sha256(std::as_bytes(numbers)));
}

class RealTokens : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    try {
      map_ = new TokenMap(TokenMap::from_tokenizer(kTokenizer));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;
    }
  }
  static void TearDownTestSuite() {
    delete map_;
    map_ = nullptr;
  }
  void SetUp() override {
    if (map_ == nullptr) GTEST_SKIP() << "this build cannot read " << kTokenizer << ": no liblzma";
  }

  static TokenMap* map_;
};
TokenMap* RealTokens::map_ = nullptr;

TEST_F(RealTokens, TokenizerCompressesToTheGoldenMap) {
  const auto expected = golden("token_map.json");
  EXPECT_EQ(std::ssize(map_->ids()), expected.at("tokens"));
  EXPECT_EQ(map_->size(), expected.at("compressed"));
  EXPECT_EQ(map_->ids()[2], 2);
  for (std::size_t i = 0; i < expected.at("head").size(); ++i) {
    EXPECT_EQ(map_->ids()[i], expected.at("head")[i]) << i;
  }
  for (const auto& [token, id] : expected.at("sample").items()) {
    EXPECT_EQ(map_->ids()[std::stoul(token)], id) << token;
  }
  EXPECT_EQ(digest_of(map_->ids()), expected.at("sha256_int32_le").get<std::string>());
  EXPECT_THAT(map_->provenance(), HasSubstr("128815 tokens and 0 placeholders"));
}

TEST_F(RealTokens, PlaceholdersFillUpToTheReleasedSizes) {
  const TokenMap full = TokenMap::from_tokenizer(kTokenizer, 129280);
  EXPECT_EQ(full.ids().size(), 129280U);
  EXPECT_EQ(full.size(), 99092);
  EXPECT_EQ(full.ids()[128815], 98627);
  EXPECT_EQ(full.ids().back(), 99091);
  EXPECT_THAT([] { TokenMap::from_tokenizer(kTokenizer, 128814); },
              ThrowsMessage<Error>(HasSubstr("has 128815 tokens, vocab_size is 128814")));
}

TEST_F(RealTokens, CorporaHashToTheGoldenRows) {
  const auto corpora = golden("corpus_hashes.json").at("corpora");
  ASSERT_EQ(corpora.size(), 5U);
  const auto file = SafetensorsFile::open(PENSTOCK_TEST_DATA "/golden/corpus_tokens.safetensors");
  const NgramHasher hasher(HashLayout(released_config()), *map_, kImageTokenId);
  for (const auto& [name, expected] : corpora.items()) {
    const auto bytes = file.bytes(*file.find(name));
    std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    ASSERT_EQ(std::ssize(ids), expected.at("tokens")) << name;
    std::vector<std::int64_t> positions(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) positions[i] = static_cast<std::int64_t>(i);
    const std::vector<std::int32_t> query_start{0, static_cast<std::int32_t>(ids.size())};
    const std::vector<std::int32_t> lookback(3, -1);
    const auto rows = hasher({ids, query_start, positions, lookback});
    EXPECT_EQ(nlohmann::json(std::span(rows).first(24)), expected.at("first_token")[0]) << name;
    EXPECT_EQ(digest_of(rows), expected.at("rows_sha256_int32_le").get<std::string>()) << name;
  }
}

}  // namespace
}  // namespace penstock
