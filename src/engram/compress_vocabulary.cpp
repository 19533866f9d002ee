#include "engram/compress_vocabulary.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "engram/normalise_text.hpp"

namespace penstock::detail {
namespace {

/// The byte that each character below 324 stands for in byte-level vocabularies, or -1: printable
/// Latin-1 characters stand for themselves, the other bytes are numbered from U+0100 on.
constexpr std::array<int, 324> make_byte_of_character() {
  std::array<int, 324> byte_of{};
  byte_of.fill(-1);
  std::size_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool stands_for_itself =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    byte_of[stands_for_itself ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return byte_of;
}

/// The bytes of a token. One with a character outside the byte alphabet, as most added tokens
/// have, is its own text.
std::string token_bytes(const std::string& token) {
  static constexpr auto kByteOfCharacter = make_byte_of_character();
  const auto characters = decode_utf8(token);
  if (!characters) return token;
  std::string bytes;
  for (const char32_t character : *characters) {
    if (character >= kByteOfCharacter.size() || kByteOfCharacter[character] < 0) return token;
    bytes += static_cast<char>(kByteOfCharacter[character]);
  }
  return bytes;
}

/// What tells a token from others.
std::string token_key(const std::string& token) {
  std::string bytes = token_bytes(token);
  const auto text = decode_utf8(bytes);
  if (!text || text->find(U'\uFFFD') != std::u32string::npos) return token;
  const std::u32string normalised = normalise_text(*text);
  if (normalised.empty()) return bytes;
  std::string key;
  for (const char32_t character : normalised) append_utf8(key, character);
  return key;
}

}  // namespace

std::vector<std::int32_t> compress_vocabulary(std::span<const std::string> token_of_id) {
  // One dictionary for raw strings and texts: where they are equal, the models merge them.
  std::unordered_map<std::string, std::int32_t> id_of_key;
  id_of_key.reserve(token_of_id.size());
  std::vector<std::int32_t> ids;
  ids.reserve(token_of_id.size());
  for (const std::string& token : token_of_id) {
    const auto next = static_cast<std::int32_t>(id_of_key.size());
    ids.push_back(id_of_key.try_emplace(token_key(token), next).first->second);
  }
  return ids;
}

}  // namespace penstock::detail
