#include "checkpoint/config_reader.hpp"

#include <fmt/format.h>

#include <limits>

#include "checkpoint/strict_json.hpp"

namespace penstock::detail {
namespace {

const nlohmann::json* find_in(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

}  // namespace

ConfigReader::ConfigReader(std::string_view json, std::string_view source)
    : source_(source),
      top_(parse_strict_json(json, source)) {
  if (!top_.is_object()) throw_corrupt(source_, "not a JSON object");
  text_ = find_in(top_, "text_config");
  if (text_ != nullptr && !text_->is_object()) refuse("text_config", *text_, "an object");
}

const nlohmann::json* ConfigReader::find(const char* key) const {
  const auto* at_top = find_in(top_, key);
  const auto* in_text = text_ == nullptr ? nullptr : find_in(*text_, key);
  // Two tables of different sizes cannot both be meant.
  if (at_top != nullptr && in_text != nullptr && *at_top != *in_text &&
      std::string_view(key).starts_with("engram_")) {
    refuse(key, *at_top, fmt::format("{}, as under text_config", printable(*in_text)));
  }
  return in_text != nullptr ? in_text : at_top;
}

void ConfigReader::refuse(std::string_view key, const nlohmann::json& found,
                          std::string_view needed) const {
  throw_corrupt(source_, fmt::format("{} is {}, needed: {}", key, printable(found), needed));
}

void ConfigReader::refuse_missing(std::string_view key) const {
  throw_corrupt(source_, fmt::format("key {} is missing", key));
}

std::int64_t ConfigReader::checked_integer(std::string_view key, const nlohmann::json& value,
                                           IntegerRange range) const {
  // An unsigned number past int64 would wrap in get().
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
  const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (!fits || number < range.least || number > range.most) {
    refuse(key, value, fmt::format("a whole number from {} to {}", range.least, range.most));
  }
  return number;
}

std::optional<std::int64_t> ConfigReader::integer(const char* key, IntegerRange range) const {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  return checked_integer(key, *value, range);
}

std::int64_t ConfigReader::required_integer(const char* key, IntegerRange range) const {
  const auto value = integer(key, range);
  if (!value) refuse_missing(key);
  return *value;
}

std::vector<std::int64_t> ConfigReader::required_integers(const char* key,
                                                          IntegerRange range) const {
  const auto* value = find(key);
  if (value == nullptr) refuse_missing(key);
  if (!value->is_array() || value->empty()) refuse(key, *value, "a list with at least one number");
  std::vector<std::int64_t> numbers;
  for (const auto& item : *value) {
    numbers.push_back(checked_integer(fmt::format("{}[{}]", key, numbers.size()), item, range));
  }
  return numbers;
}

std::optional<double> ConfigReader::number(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) refuse(key, *value, "a number");
  return value->get<double>();
}

std::optional<bool> ConfigReader::boolean(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(key, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> ConfigReader::string(const char* key) const {
  const auto* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(key, *value, "a string");
  return value->get<std::string>();
}

}  // namespace penstock::detail
