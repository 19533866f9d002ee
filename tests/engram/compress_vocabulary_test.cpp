#include "engram/compress_vocabulary.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::detail {
namespace {

using testing::ElementsAre;

std::vector<std::int32_t> compress(const std::vector<std::string>& tokens) {
  return compress_vocabulary(tokens);
}

TEST(CompressVocabulary, NumbersTextsInTheOrderOfFirstSight) {
  EXPECT_THAT(compress({"b", "a", "B", "c", "A", "b"}), ElementsAre(0, 1, 0, 2, 1, 0));
  EXPECT_THAT(compress({}), ElementsAre());
}

TEST(CompressVocabulary, DecodesTheByteAlphabet) {
  // A leading blank is written with U+0120, a line end with U+010A; accents are two bytes each.
  EXPECT_THAT(
      compress({"the", "\xC4\xA0the", "\xC4\xA0\xC4\xA0", "\xC4\x8A", "\xC3\x83\xC2\xA9", "e"}),
      ElementsAre(0, 0, 1, 1, 2, 2));
}

TEST(CompressVocabulary, TellsPartsOfCharactersApartByTheirRawString) {
  // U+00C3 and U+00C4 stand for the bytes C3 and C4, neither of which is text alone.
  EXPECT_THAT(compress({"\xC3\x83", "\xC3\x84", "\xC3\x83"}), ElementsAre(0, 1, 0));
}

TEST(CompressVocabulary, MergesARawStringWithAnEqualText) {
  // The raw string of the byte E3 is U+00E3. Bytes of "a" with a tilde are another matter: they
  // normalise to "a".
  EXPECT_THAT(compress({"\xC3\xA3", "a", "\xC3\x83\xC2\xA3"}), ElementsAre(0, 1, 1));
  // U+0130 lies inside the alphabet, U+2581 outside, so the second is its own text.
  EXPECT_THAT(compress({"\xE2\x96\x81"
                        "A",
                        "\xE2\x96\x81"
                        "a"}),
              ElementsAre(0, 0));
}

TEST(CompressVocabulary, KeepsTextThatNormalisesToNothing) {
  // U+010B is the byte 0B, a vertical tab: white space, but no blank. U+0302 alone is a mark.
  EXPECT_THAT(compress({"\xC4\x8B", "\xC4\x8C", "\xC4\x8B", "\xC4\xA0"}), ElementsAre(0, 1, 0, 2));
}

TEST(CompressVocabulary, KeepsReplacementCharactersRaw) {
  // EF BF BD in the byte alphabet, then with a capital letter: no folding takes place.
  const std::string replacement = "\xC3\xAF\xC2\xBF\xC2\xBD";
  EXPECT_THAT(compress({replacement + "A", replacement + "a"}), ElementsAre(0, 1));
}

}  // namespace
}  // namespace penstock::detail
