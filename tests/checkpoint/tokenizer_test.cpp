#include "penstock/checkpoint/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "checkpoint/text_file.hpp"
#include "penstock/core/error.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using test::TempDir;
using testing::ElementsAre;

constexpr std::string_view kSmall = R"({
  "version": "1.0", "truncation": null,
  "added_tokens": [{"id": 4, "content": "<user>", "special": true},
                   {"id": 0, "content": "<pad>", "single_word": false}],
  "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}]},
  "decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]},
  "model": {"type": "BPE", "dropout": null, "byte_fallback": false, "end_of_word_suffix": "",
            "vocab": {"b": 2, "<pad>": 0, "\u0120a": 3, "a": 1},
            "merges": ["a b", ["a", "b"], ["a", "b"]]}})";

// What `printf '[1, 2]' | xz -9 --check=crc32` gives.
constexpr std::string_view kPackedList(
    "\xfd\x37\x7a\x58\x5a\x00\x00\x01\x69\x22\xde\x36\x02\x00\x21\x01\x1c\x00\x00\x00\x10\xcf"
    "\x58\xcc\x01\x00\x05\x5b\x31\x2c\x20\x32\x5d\x00\x00\x00\xff\xe7\xc9\x61\x00\x01\x1a\x06"
    "\xc5\xea\xc8\x79\x90\x42\x99\x0d\x01\x00\x00\x00\x00\x01\x59\x5a",
    60);

TEST(LoadTokenizer, ReadsVocabularyAndAddedTokensInTheOrderOfTheirIds) {
  const TempDir dir;
  EXPECT_THAT(load_tokenizer(dir.write("tokenizer.json", kSmall)).token_of_id,
              ElementsAre("<pad>", "a", "b", "\u0120a", "<user>"));
}

TEST(LoadTokenizer, ReadsModelsWithoutAddedTokens) {
  const TempDir dir;
  const auto file = dir.write("t.json", R"({"added_tokens": null, "decoder": {"type": "ByteLevel"},
                                            "model": {"vocab": {"x": 0}, "type": "BPE"}})");
  EXPECT_THAT(load_tokenizer(file).token_of_id, ElementsAre("x"));
}

TEST(LoadTokenizer, ReadsManyTokens) {
  const TempDir dir;
  constexpr int kTokens = 20'000;
  std::string vocab;
  for (int id = kTokens; id-- > 0;) {
    vocab += "\"t" + std::to_string(id) + "\":" + std::to_string(id) + (id > 0 ? "," : "");
  }
  const auto file = dir.write("t.json", R"({"decoder":{"type":"ByteLevel"},"model":{"type":"BPE",)"
                                        "\"vocab\":{" +
                                            vocab + "}}}");
  const auto tokens = load_tokenizer(file).token_of_id;
  ASSERT_EQ(tokens.size(), kTokens);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    ASSERT_EQ(tokens[id], "t" + std::to_string(id));
  }
}

TEST(UnpackXz, GivesTheTextOrSaysWhatTheBuildLacks) {
  try {
    EXPECT_EQ(detail::unpack_xz(kPackedList, "list.json.xz"), "[1, 2]");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
  }
}

TEST(UnpackXz, RefusesEveryCutAndChange) {
  for (std::size_t size = 0; size < kPackedList.size(); ++size) {
    EXPECT_THROW(detail::unpack_xz(kPackedList.substr(0, size), "x"), Error) << size;
    std::string changed(kPackedList);
    changed[size] ^= 1;
    EXPECT_THROW(detail::unpack_xz(changed, "x"), Error) << size;
  }
}

}  // namespace
}  // namespace penstock
