#pragma once

#include <string_view>

#include "penstock/checkpoint/tokenizer.hpp"

namespace penstock::detail {

/// Parses the text of a tokenizer.json. Errors: as load_tokenizer; messages start with `source`.
TokenizerVocabulary parse_tokenizer(std::string_view json, std::string_view source);

}  // namespace penstock::detail
