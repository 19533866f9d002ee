#include "penstock/engram/token_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "core/sha256.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TokenMap, CountsCompressedIdsByTheLargest) {
  const TokenMap map({3, 0, 3});
  EXPECT_EQ(map.size(), 4);
  EXPECT_THAT(map.ids(), ElementsAre(3, 0, 3));
  const TokenMap identity = TokenMap::identity(3);
  EXPECT_THAT(identity.ids(), ElementsAre(0, 1, 2));
  EXPECT_EQ(identity.size(), 3);
}

TEST(TokenMap, RefusesWhatIsNoMap) {
  EXPECT_THROW(TokenMap({}), Error);
  EXPECT_THROW(TokenMap({0, -1}), Error);
  EXPECT_THROW(TokenMap({std::numeric_limits<std::int32_t>::max()}), Error);
  EXPECT_THROW(TokenMap::identity(0), Error);
}

class TokenMapFile : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    file_ = std::filesystem::temp_directory_path() /
            (std::string("penstock_token_map_") + test->name() + ".map");
    std::filesystem::remove(file_);
  }
  void TearDown() override { std::filesystem::remove(file_); }

  std::string saved(const TokenMap& map) {
    map.save(file_);
    std::ifstream stream(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  void write(const std::string& bytes) { std::ofstream(file_, std::ios::binary) << bytes; }

  /// Writes `bytes` with a checksum that fits them.
  void write_sealed(std::string bytes) {
    const std::string covered = bytes.substr(0, 32) + bytes.substr(64);
    const auto digest = sha256(std::as_bytes(std::span(covered)));
    bytes.replace(32, 32, reinterpret_cast<const char*>(digest.data()), 32);
    write(bytes);
  }

  void expect_refused(const char* message, ErrorCode code = ErrorCode::CorruptFile) {
    try {
      TokenMap::load(file_);
      ADD_FAILURE() << "no error, needed: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), HasSubstr(message));
      EXPECT_THAT(error.what(), HasSubstr(file_.string()));
    }
  }

  std::filesystem::path file_;
};

TEST_F(TokenMapFile, KeepsIdsAndProvenance) {
  TokenMap::identity(1000).save(file_);
  const TokenMap map = TokenMap::load(file_);
  EXPECT_EQ(map.ids().size(), 1000U);
  EXPECT_EQ(map.ids()[999], 999);
  EXPECT_EQ(map.provenance(), "identity");
}

TEST_F(TokenMapFile, HasTheDocumentedBytes) {
  const std::string bytes = saved(TokenMap({2, 0, 258}));
  ASSERT_EQ(bytes.size(), 76U);
  EXPECT_EQ(bytes.substr(0, 32),
            std::string("PENSTMAP\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32));
  EXPECT_EQ(bytes.substr(64), std::string("\2\0\0\0\0\0\0\0\2\1\0\0", 12));
  // The checksum of those bytes, from another implementation.
  const auto digest = reinterpret_cast<const std::uint8_t*>(bytes.data()) + 32;
  Sha256::Digest found{};
  std::copy_n(digest, found.size(), found.begin());
  EXPECT_EQ(to_hex(found), "369136bdef4d6157bdd2887a8bef18a849b43585bd86d2ac58167658f97420dc");
}

TEST_F(TokenMapFile, RefusesEveryChangedByte) {
  const std::string bytes = saved(TokenMap::identity(3));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    write(changed);
    EXPECT_THROW(TokenMap::load(file_), Error) << "byte " << i;
  }
}

TEST_F(TokenMapFile, RefusesEveryOtherLength) {
  const std::string bytes = saved(TokenMap::identity(3));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    write(bytes.substr(0, length));
    EXPECT_THROW(TokenMap::load(file_), Error) << length << " bytes";
  }
  write(bytes + "x");
  expect_refused("has 85 bytes, needed: 84");
}

TEST_F(TokenMapFile, RefusesContradictionsUnderAValidChecksum) {
  const std::string bytes = saved(TokenMap({5, 6}));
  const auto change = [&](std::size_t at, const std::string& with) {
    std::string changed = bytes;
    changed.replace(at, with.size(), with);
    write_sealed(changed);
  };
  const std::string ones(8, '\xff');
  change(8, std::string("\2", 1));
  expect_refused("format version 2.0, needed: 1.0");
  change(12, std::string("\1", 1));
  expect_refused("format version 1.1");
  change(16, std::string(8, '\0'));
  expect_refused("has 0 tokens");
  change(16, ones);
  expect_refused("has 18446744073709551615 tokens");
  change(24, ones);
  expect_refused("a provenance of 18446744073709551615 bytes");
  change(64, std::string(4, '\xff'));
  expect_refused("ids[0] is -1");
  change(68, std::string("\xff\xff\xff\x7f", 4));
  expect_refused("ids[1] is 2147483647");
  change(0, "X");
  expect_refused("does not begin with PENSTMAP");
}

TEST_F(TokenMapFile, SaysWhenThereIsNone) {
  expect_refused("", ErrorCode::NotFound);
  EXPECT_THROW(TokenMap::identity(1).save("/nowhere/at/all.map"), Error);
}

}  // namespace
}  // namespace penstock
