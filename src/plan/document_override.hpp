#pragma once

#include <nlohmann/json.hpp>

#include <string>

namespace penstock::detail {

/// Replaces one key of a document: "key.path=value", where the value is JSON or a bare word, which
/// stands for a string. Objects on the way that are missing or null are made.
///
/// Errors: InvalidArgument for an assignment without a key, or a key below something that is no
///         object; CorruptFile for a value that is neither JSON nor a word.
void apply_override(nlohmann::json& document, const std::string& assignment);

}  // namespace penstock::detail
