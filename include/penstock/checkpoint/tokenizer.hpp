#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace penstock {

/// The vocabulary of a byte-level BPE tokenizer.json, added tokens included.
struct TokenizerVocabulary {
  std::vector<std::string> token_of_id;  ///< Raw vocabulary strings (UTF-8), index = token id.
};

/// Reads a tokenizer.json (`.json`, or `.json.xz` in a build with liblzma).
///
/// Errors: NotFound; CorruptFile for bad JSON, duplicate keys, ids that are missing, repeated,
///         negative or absurdly large, or a model that is not byte-level BPE.
TokenizerVocabulary load_tokenizer(const std::filesystem::path& file);

}  // namespace penstock
