#include "plan/document_section.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/strict_json.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {

using Json = nlohmann::json;

DocumentSection::DocumentSection(const Json& object, std::string path, std::string_view source)
    : object_(&object),
      path_(std::move(path)),
      source_(source) {
  if (object.is_object()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}: {}: found {}, needs an object", source_,
                          path_.empty() ? "the document" : path_, printable(object)));
}

void DocumentSection::read(const char* key, bool& out) {
  std::optional<bool> value;
  read(key, value);
  out = value.value_or(out);
}

void DocumentSection::read(const char* key, std::optional<bool>& out) {
  const Json* value = value_of(key);
  if (value == nullptr) return;
  if (!value->is_boolean()) refuse(key, *value, "true or false");
  out = value->get<bool>();
}

void DocumentSection::read(const char* key, std::string& out) {
  std::optional<std::string> value;
  read(key, value);
  if (value) out = *std::move(value);
}

void DocumentSection::read(const char* key, std::optional<std::string>& out) {
  const Json* value = value_of(key);
  if (value == nullptr) return;
  if (!value->is_string()) refuse(key, *value, "a string");
  out = value->get<std::string>();
}

void DocumentSection::read(const char* key, std::optional<std::vector<int>>& out) {
  const Json* value = value_of(key);
  if (value == nullptr) return;
  if (!value->is_array()) refuse(key, *value, "an array of integers");
  out.emplace();
  for (const Json& item : *value) out->push_back(integer(key, item, 0));
}

void DocumentSection::read_integer(const char* key, int& out, int at_least) {
  if (const Json* value = value_of(key)) out = integer(key, *value, at_least);
}

void DocumentSection::read_integer(const char* key, std::optional<int>& out, int at_least,
                                   int at_most) {
  if (const Json* value = value_of(key)) out = integer(key, *value, at_least, at_most);
}

void DocumentSection::read_integer(const char* key, std::optional<std::int64_t>& out,
                                   int at_least) {
  if (const Json* value = value_of(key)) out = integer(key, *value, at_least);
}

void DocumentSection::read_opaque_object(const char* key, std::optional<std::string>& out) {
  const Json* value = value_of(key);
  if (value == nullptr) return;
  if (!value->is_object()) refuse(key, *value, "an object or null");
  out = value->dump();
}

std::optional<DocumentSection> DocumentSection::section(const char* key) {
  const Json* value = value_of(key);
  if (value == nullptr) return std::nullopt;
  return DocumentSection(*value, path_of(key), source_);
}

void DocumentSection::finish() const {
  for (const auto& [key, value] : object_->items()) {
    if (std::ranges::find(known_keys_, key) != known_keys_.end()) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}: {}: found an unknown key with value {}, needs one of {}", source_,
                            path_of(key), printable(value), fmt::join(known_keys_, ", ")));
  }
}

const Json* DocumentSection::value_of(const char* key) {
  known_keys_.emplace_back(key);
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::string DocumentSection::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

void DocumentSection::refuse(std::string_view key, const Json& found,
                             std::string_view needs) const {
  throw Error(ErrorCode::InvalidArgument, fmt::format("{}: {}: found {}, needs {}", source_,
                                                      path_of(key), printable(found), needs));
}

int DocumentSection::integer(std::string_view key, const Json& value, int at_least,
                             int at_most) const {
  // Compared as what it is: an unsigned value above the signed range would read as a negative one.
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(at_most)
                        : value.is_number_integer() && value.get<std::int64_t>() <= at_most;
  if (!fits || value.get<std::int64_t>() < at_least) {
    refuse(key, value, fmt::format("an integer from {} to {}", at_least, at_most));
  }
  return value.get<int>();
}

}  // namespace penstock::detail
