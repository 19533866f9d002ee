#pragma once

#include <nlohmann/json.hpp>

#include <string_view>

namespace penstock::detail {

/// Parses JSON and refuses what the parser would pass over in silence: a key that stands twice.
///
/// Errors: CorruptFile, naming `source` and the byte or the key.
nlohmann::json parse_strict_json(std::string_view text, std::string_view source);

}  // namespace penstock::detail
