// Writes src/engram/unicode_tables.hpp to stdout.
//
//   g++ -std=c++20 tools/generate_unicode_tables.cpp -o /tmp/generate $(pkg-config --cflags --libs icu-uc)
//   /tmp/generate > src/engram/unicode_tables.hpp
//
// Tokenizers of the `tokenizers` package normalise with the tables of Unicode 9.0 and lowercase with
// those of Unicode 17.0; ICU knows the age of every character, so a newer ICU gives the former.
// Since the result of NFKC and NFD is the compatibility decomposition, and the marks are dropped
// after it, the order of marks does not matter and every character can be folded on its own.
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr UChar32 kHangulFirst = 0xAC00;  // decomposed by rule, not by table
constexpr UChar32 kHangulLast = 0xD7A3;

struct Range {
  UChar32 first, last, lower;
};

// Capital letters that Unicode 16.0 and 17.0 added; ICU 72 knows 15.0.
constexpr Range kNewCapitals[] = {
    {0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x0264}, {0xA7CC, 0xA7CC, 0xA7CD},
    {0xA7CE, 0xA7CE, 0xA7CF},    {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
    {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x019B}, {0x10D50, 0x10D65, 0x10D70},
    {0x16EA0, 0x16EB8, 0x16EBB},
};

class Folding {
 public:
  Folding()
      : nine_(u"[:age=9.0:]", status_),
        nfkd_(*icu::Normalizer2::getNFKDInstance(status_), nine_) {}

  bool is_good() const { return U_SUCCESS(status_); }

  bool is_mark(UChar32 c) const {
    return nine_.contains(c) && (U_GET_GC_MASK(c) & U_GC_M_MASK) != 0;
  }

  std::vector<UChar32> fold(UChar32 c) {
    icu::UnicodeString decomposed;
    nfkd_.normalize(icu::UnicodeString(c), decomposed, status_);
    std::vector<UChar32> result;
    for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1)) {
      const UChar32 part = decomposed.char32At(i);
      if (is_mark(part)) continue;
      const icu::UnicodeString lower = lowercase(part);
      for (int32_t j = 0; j < lower.length(); j = lower.moveIndex32(j, 1)) {
        result.push_back(lower.char32At(j));
      }
    }
    return result;
  }

 private:
  static icu::UnicodeString lowercase(UChar32 c) {
    for (const auto& range : kNewCapitals) {
      if (c >= range.first && c <= range.last) return {UChar32(range.lower + (c - range.first))};
    }
    return icu::UnicodeString(c).toLower(icu::Locale::getRoot());
  }

  UErrorCode status_ = U_ZERO_ERROR;
  icu::UnicodeSet nine_;
  icu::FilteredNormalizer2 nfkd_;
};

template <typename Number>
void print_array(const char* type, const char* name, const std::vector<Number>& numbers,
                 const char* format) {
  std::printf("inline constexpr std::array<%s, %zu> %s{", type, numbers.size(), name);
  std::string line = "\n   ";
  for (const Number number : numbers) {
    char text[16];
    std::snprintf(text, sizeof(text), format, static_cast<unsigned>(number));
    if (line.size() + 2 + std::string(text).size() > 100) {
      std::printf("%s", line.c_str());
      line = "\n   ";
    }
    line += std::string(" ") + text + ",";
  }
  line.pop_back();
  std::printf("%s};\n", line.c_str());
}

}  // namespace

int main() {
  Folding folding;
  std::vector<UChar32> marks;
  std::vector<UChar32> from;
  std::vector<UChar32> to;
  std::vector<unsigned> ends;
  for (UChar32 c = 0; c <= 0x10FFFF; ++c) {
    if (U_IS_SURROGATE(c) || (c >= kHangulFirst && c <= kHangulLast)) continue;
    if (folding.is_mark(c)) {
      if (!marks.empty() && marks.back() == c - 1) {
        marks.back() = c;
      } else {
        marks.insert(marks.end(), {c, c});
      }
      continue;
    }
    const auto folded = folding.fold(c);
    if (folded == std::vector<UChar32>{c}) continue;
    from.push_back(c);
    to.insert(to.end(), folded.begin(), folded.end());
    ends.push_back(static_cast<unsigned>(to.size()));
  }
  if (!folding.is_good() || to.size() > 0xFFFF) return 1;

  std::printf(
      "#pragma once\n\n"
      "// Made by tools/generate_unicode_tables.cpp; do not edit.\n"
      "// Decomposition and marks of Unicode 9.0, lowercase of Unicode 17.0.\n"
      "#include <array>\n#include <cstdint>\n\n"
      "// clang-format off\n"
      "namespace penstock::detail {\n\n"
      "/// First and last character of each run of marks (Mn, Mc and Me), rising.\n");
  print_array("char32_t", "kMarkRanges", marks, "0x%X");
  std::printf(
      "\n/// Characters that fold to something else, rising; no marks, no Hangul syllables.\n");
  print_array("char32_t", "kFoldedFrom", from, "0x%X");
  std::printf(
      "\n/// Where in kFoldedTo the folding of each of them ends; it begins where the last one "
      "ended.\n");
  print_array("std::uint16_t", "kFoldedEnd", ends, "%u");
  std::printf("\n/// Decomposed, without marks, in lower case.\n");
  print_array("char32_t", "kFoldedTo", to, "0x%X");
  std::printf("\n}  // namespace penstock::detail\n// clang-format on\n");
  return 0;
}
