#include "engram/normalise_text.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace penstock::detail {
namespace {

TEST(DecodeUtf8, AcceptsExactlyWellFormedText) {
  EXPECT_EQ(decode_utf8(""), U"");
  EXPECT_EQ(
      decode_utf8("a\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"),
      U"a\x7f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff");
  for (const char* text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2\x41", "\xe0\x9f\xbf", "\xe2\x82",
        "\xed\xa0\x80", "\xed\xbf\xbf", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "\xff", "ok\xe2\x82\x28", "\xf0\x9f\x98"}) {
    EXPECT_EQ(decode_utf8(text), std::nullopt) << text;
  }
}

TEST(DecodeUtf8, UndoesAppendUtf8ForEveryCharacter) {
  std::u32string characters;
  std::string text;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    characters += c;
    append_utf8(text, c);
  }
  EXPECT_TRUE(decode_utf8(text) == characters);
}

TEST(NormaliseText, FoldsAsTheModelsDo) {
  const std::vector<std::pair<std::u32string, std::u32string>> cases{
      {U"", U""},
      {U"Hello", U"hello"},
      {U"\u00C9t\u00E9", U"ete"},                      // precomposed accents
      {U"e\u0301\u0323", U"e"},                        // combining ones
      {U"\uFF21\uFB01\u2460", U"afi1"},                // full width, ligature, circled digit
      {U"\u0394\u039F\u03A3", U"\u03B4\u03BF\u03C3"},  // no final sigma
      {U"\u0130", U"i"},
      {U"\u212B\u2126", U"a\u03C9"},
      {U"\uD55C\uAC00", U"\u1112\u1161\u11AB\u1100\u1161"},  // Hangul stays apart
      {U"\u0915\u093F", U"\u0915"},                          // a spacing mark
      {U"a\u20DDb", U"ab"},                                  // an enclosing mark
      {U"\U0001E900", U"\U0001E922"},                        // new in Unicode 9.0
      {U"\u32FF", U"\u32FF"},                                // new in 12.1: not decomposed
      {U"\u08D3", U"\u08D3"},                                // a mark since 11.0: kept
      {U"\u1C90", U"\u10D0"},                                // a capital since 11.0: still lowered
      {U"\uA7DA", U"\uA7DB"},                                // a capital since 16.0
      {U"a \t\r\n b", U"a b"},
      {U"  a  ", U"a"},
      {U" ", U" "},
      {U"\u00A0", U" "},  // compatibility blank
      {U"\t\n", U" "},
      {U"\u2028", U""},  // other white space is trimmed
      {U"\u000Ba\u0085", U"a"},
      {U"\u3000\u3000", U" "},
      {U" \u2028 ", U""},
      {U"\uE000", U" "},
      {U"a\uE000b", U"a b"},
      {U"\u0301", U""},
  };
  for (const auto& [text, expected] : cases) {
    std::string shown;
    for (const char32_t c : text) append_utf8(shown, c);
    EXPECT_EQ(normalise_text(text), expected) << shown;
  }
}

}  // namespace
}  // namespace penstock::detail
