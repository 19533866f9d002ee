#include <fmt/format.h>

#include <limits>

#include "checkpoint/mapped_file.hpp"
#include "core/sha256.hpp"
#include "engram/compress_vocabulary.hpp"
#include "penstock/checkpoint/tokenizer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/token_map.hpp"

namespace penstock {

TokenMap TokenMap::from_tokenizer(const std::filesystem::path& file,
                                  std::optional<std::int64_t> vocab_size) {
  constexpr std::int64_t kMaxVocabulary = std::numeric_limits<std::int32_t>::max();
  const TokenizerVocabulary vocabulary = load_tokenizer(file);
  const auto tokens = std::ssize(vocabulary.token_of_id);
  const std::int64_t size = vocab_size.value_or(tokens);
  if (size < tokens || size > kMaxVocabulary) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("TokenMap::from_tokenizer: {} has {} tokens, vocab_size is {}, needed: a "
                    "vocab_size from {} to {}",
                    file.string(), tokens, size, tokens, kMaxVocabulary));
  }
  std::vector<std::int32_t> ids = detail::compress_vocabulary(vocabulary.token_of_id);
  std::int32_t fresh = TokenMap(ids).size();
  while (std::ssize(ids) < size) ids.push_back(fresh++);
  TokenMap map(std::move(ids));
  const auto digest = sha256(detail::MappedFile::open(file).bytes());
  map.provenance_ = fmt::format("{}, SHA-256 {}, {} tokens and {} placeholders",
                                file.filename().string(), to_hex(digest), tokens, size - tokens);
  return map;
}

}  // namespace penstock
