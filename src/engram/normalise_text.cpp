#include "engram/normalise_text.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engram/unicode_tables.hpp"

namespace penstock::detail {
namespace {

bool is_mark(char32_t character) {
  // Ranges lie flat as first, last, first, last: an even count of bounds lies below a non-mark.
  const auto above = std::ranges::lower_bound(kMarkRanges, character);
  if (above == kMarkRanges.end()) return false;
  const bool is_last_of_range = (above - kMarkRanges.begin()) % 2 == 1;
  return is_last_of_range || *above == character;
}

/// Unicode's rule for the 11,172 Hangul syllables.
void append_syllable(std::u32string& text, char32_t syllable) {
  constexpr char32_t kVowels = 21;
  constexpr char32_t kTails = 28;
  const char32_t index = syllable - 0xAC00;
  text += static_cast<char32_t>(0x1100 + index / (kVowels * kTails));
  text += static_cast<char32_t>(0x1161 + index / kTails % kVowels);
  if (index % kTails != 0) text += static_cast<char32_t>(0x11A7 + index % kTails);
}

/// Decomposes one character, drops marks, lowercases.
void append_folded(std::u32string& text, char32_t character) {
  if (character >= 'a' && character <= 'z') {
    text += character;
    return;
  }
  if (character >= 0xAC00 && character <= 0xD7A3) return append_syllable(text, character);
  const auto found = std::ranges::lower_bound(kFoldedFrom, character);
  if (found == kFoldedFrom.end() || *found != character) {
    if (!is_mark(character)) text += character;
    return;
  }
  const auto i = static_cast<std::size_t>(found - kFoldedFrom.begin());
  const std::size_t begin = i == 0 ? 0 : kFoldedEnd[i - 1];
  text.append(kFoldedTo.data() + begin, kFoldedEnd[i] - begin);
}

/// Each run of blanks, tabs and line ends becomes one blank.
std::u32string join_blanks(const std::u32string& text) {
  std::u32string joined;
  for (const char32_t character : text) {
    const bool is_blank =
        character == U' ' || character == U'\t' || character == U'\r' || character == U'\n';
    if (is_blank && joined.ends_with(U' ')) continue;
    joined += is_blank ? U' ' : character;
  }
  return joined;
}

/// Unicode's White_Space.
bool is_white_space(char32_t character) {
  return (character >= 0x09 && character <= 0x0D) || character == 0x20 || character == 0x85 ||
         character == 0xA0 || character == 0x1680 || (character >= 0x2000 && character <= 0x200A) ||
         character == 0x2028 || character == 0x2029 || character == 0x202F || character == 0x205F ||
         character == 0x3000;
}

std::u32string_view trim(std::u32string_view text) {
  while (!text.empty() && is_white_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_white_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::optional<std::u32string> decode_utf8(std::string_view text) {
  std::u32string characters;
  characters.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    if (first < 0x80) {
      characters += first;
      ++i;
      continue;
    }
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || text.size() - i < length) return std::nullopt;
    char32_t character = first & (0x7FU >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xC0U) != 0x80) return std::nullopt;
      character = (character << 6) | (next & 0x3FU);
    }
    constexpr std::array<char32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
    const bool is_surrogate = character >= 0xD800 && character <= 0xDFFF;
    if (character < kLeast[length] || character > 0x10FFFF || is_surrogate) return std::nullopt;
    characters += character;
    i += length;
  }
  return characters;
}

void append_utf8(std::string& text, char32_t character) {
  const auto tail = [&](int shift) {
    text += static_cast<char>(0x80U | ((character >> shift) & 0x3FU));
  };
  if (character < 0x80) {
    text += static_cast<char>(character);
  } else if (character < 0x800) {
    text += static_cast<char>(0xC0U | (character >> 6));
    tail(0);
  } else if (character < 0x10000) {
    text += static_cast<char>(0xE0U | (character >> 12));
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0U | (character >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::u32string normalise_text(std::u32string_view text) {
  // A lone blank would be trimmed away, so it travels as a private-use character; where the text
  // itself has that character, it becomes a blank too.
  constexpr char32_t kLoneBlank = 0xE000;
  std::u32string folded;
  folded.reserve(text.size());
  for (const char32_t character : text) append_folded(folded, character);
  std::u32string joined = join_blanks(folded);
  if (joined == U" ") joined = kLoneBlank;
  std::u32string result(trim(joined));
  std::ranges::replace(result, kLoneBlank, U' ');
  return result;
}

}  // namespace penstock::detail
