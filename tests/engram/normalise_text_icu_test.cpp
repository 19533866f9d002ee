#include <gtest/gtest.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engram/normalise_text.hpp"

namespace penstock::detail {
namespace {

/// The rule's steps one by one, with ICU's tables cut back to Unicode 9.0.
class IcuNormaliser {
 public:
  IcuNormaliser()
      : nine_(u"[:age=9.0:]", status_),
        nfkc_(*icu::Normalizer2::getNFKCInstance(status_), nine_),
        nfd_(*icu::Normalizer2::getNFDInstance(status_), nine_) {
    nine_.freeze();
  }

  std::u32string operator()(const std::u32string& text) {
    icu::UnicodeString composed;
    icu::UnicodeString decomposed;
    nfkc_.normalize(icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(text.data()),
                                                  static_cast<std::int32_t>(text.size())),
                    composed, status_);
    nfd_.normalize(composed, decomposed, status_);
    EXPECT_TRUE(U_SUCCESS(status_));
    icu::UnicodeString folded;
    for (std::int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1)) {
      const UChar32 c = decomposed.char32At(i);
      const bool is_mark = nine_.contains(c) && (U_GET_GC_MASK(c) & U_GC_M_MASK) != 0;
      if (!is_mark) folded += icu::UnicodeString(c).toLower(icu::Locale::getRoot());
    }
    return trim(join_blanks(folded));
  }

 private:
  static icu::UnicodeString join_blanks(const icu::UnicodeString& text) {
    icu::UnicodeString joined;
    for (std::int32_t i = 0; i < text.length(); ++i) {
      const bool is_blank = icu::UnicodeString(u" \t\r\n").indexOf(text[i]) >= 0;
      if (!is_blank) joined += text[i];
      if (is_blank && !joined.endsWith(u' ')) joined += u' ';
    }
    return joined;
  }

  static std::u32string trim(icu::UnicodeString text) {
    if (text == icu::UnicodeString(u' ')) text = icu::UnicodeString(u'\uE000');
    std::int32_t begin = 0;
    std::int32_t end = text.length();
    while (begin < end && u_hasBinaryProperty(text[begin], UCHAR_WHITE_SPACE)) ++begin;
    while (begin < end && u_hasBinaryProperty(text[end - 1], UCHAR_WHITE_SPACE)) --end;
    text = icu::UnicodeString(text, begin, end - begin);
    text.findAndReplace(icu::UnicodeString(u'\uE000'), icu::UnicodeString(u' '));
    std::u32string result;
    for (std::int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
      result += static_cast<char32_t>(text.char32At(i));
    }
    return result;
  }

  UErrorCode status_ = U_ZERO_ERROR;
  icu::UnicodeSet nine_;
  icu::FilteredNormalizer2 nfkc_;
  icu::FilteredNormalizer2 nfd_;
};

bool is_character(char32_t c) {
  return c < 0xD800 || c > 0xDFFF;
}

/// Whether this ICU knows the character; the lower case of newer ones is beyond it.
bool is_known(char32_t c) {
  return u_charType(static_cast<UChar32>(c)) != U_UNASSIGNED;
}

TEST(NormaliseText, AgreesWithIcuOnEveryCharacter) {
  IcuNormaliser oracle;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (!is_character(c) || !is_known(c)) continue;
    const std::u32string text(1, c);
    ASSERT_EQ(normalise_text(text), oracle(text)) << std::hex << static_cast<unsigned>(c);
  }
}

TEST(NormaliseText, AgreesWithIcuOnRandomStrings) {
  IcuNormaliser oracle;
  std::mt19937 random(9);
  // Marks, blanks and characters that compose are common, so that they meet.
  const std::u32string often =
      U" \t\n\r\u00A0\u2028\u0301\u0300\u0323\u093F\u0345aeIO\u03A3\u1100\u1161\u11A8\uAC00\uE000"
      U"\uFB01";
  for (int round = 0; round < 20000; ++round) {
    std::u32string text;
    for (auto length = random() % 9; length > 0; --length) {
      auto c = static_cast<char32_t>(random() % 0x110000);
      if (random() % 3 == 0) c %= 0x3000;
      if (random() % 2 == 0) c = often[random() % often.size()];
      if (is_character(c) && is_known(c)) text += c;
    }
    ASSERT_EQ(normalise_text(text), oracle(text)) << round;
  }
}

}  // namespace
}  // namespace penstock::detail
