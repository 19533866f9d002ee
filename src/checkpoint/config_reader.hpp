#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::detail {

/// What a number in a config may be.
struct IntegerRange {
  std::int64_t least = 0;
  std::int64_t most = 0;
};

/// Typed, range-checked access to the keys of a config.json. A key under `text_config` wins over
/// the same key at the top level; null counts as absent.
///
/// Errors: CorruptFile; the message names the source, the key, the value found and what is needed.
class ConfigReader {
 public:
  ConfigReader(std::string_view json, std::string_view source);

  /// Null if the key is absent.
  const nlohmann::json* find(const char* key) const;

  std::optional<std::int64_t> integer(const char* key, IntegerRange range) const;
  std::int64_t required_integer(const char* key, IntegerRange range) const;
  std::vector<std::int64_t> required_integers(const char* key, IntegerRange range) const;
  std::optional<double> number(const char* key) const;
  std::optional<bool> boolean(const char* key) const;
  std::optional<std::string> string(const char* key) const;

  /// Errors: always "<source>: <key> is <found>, needed: <needed>".
  [[noreturn]] void refuse(std::string_view key, const nlohmann::json& found,
                           std::string_view needed) const;
  [[noreturn]] void refuse_missing(std::string_view key) const;

  /// `value` as a whole number within `range`; `key` is for the error.
  std::int64_t checked_integer(std::string_view key, const nlohmann::json& value,
                               IntegerRange range) const;

 private:
  std::string source_;
  nlohmann::json top_;
  const nlohmann::json* text_ = nullptr;
};

}  // namespace penstock::detail
