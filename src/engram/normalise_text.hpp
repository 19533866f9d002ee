#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock::detail {

/// The characters of a UTF-8 string; nothing if it is not valid UTF-8 (overlong forms, surrogates
/// and values above U+10FFFF are not).
std::optional<std::u32string> decode_utf8(std::string_view text);

/// Appends one character. Range: not a surrogate, at most U+10FFFF.
void append_utf8(std::string& text, char32_t character);

/// What decides whether two tokens are the same to the n-gram hash: NFKC, NFD, marks dropped, lower
/// case, runs of blanks made one, trimmed; a lone blank stays.
std::u32string normalise_text(std::u32string_view text);

}  // namespace penstock::detail
