#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace penstock::detail {

/// Parses JSON text and refuses what a plain parser lets pass: equal keys in one object, and
/// nesting deeper than 64.
///
/// Errors: CorruptFile; the message starts with `source`.
nlohmann::json parse_strict_json(std::string_view text, std::string_view source);

/// `text` in quotes, on one line, in ASCII and of bounded length, for error messages.
std::string in_quotes(std::string_view text);

/// A JSON value likewise.
std::string printable(const nlohmann::json& value);

/// Errors: CorruptFile, always: "<source>: <message>".
[[noreturn]] void throw_corrupt(std::string_view source, std::string_view message);

}  // namespace penstock::detail
