#include "plan/document_override.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "checkpoint/strict_json.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

/// A bare word is a string, so that a shell needs no quotes within quotes.
nlohmann::json override_value(const std::string& text, const std::string& name) {
  if (nlohmann::json::accept(text)) return parse_strict_json(text, name);
  const bool is_word = !text.empty() && std::string_view("{[\"").find(text[0]) == std::string::npos;
  if (!is_word) return parse_strict_json(text, name);  // throws with the place
  return text;
}

}  // namespace

void apply_override(nlohmann::json& document, const std::string& assignment) {
  const std::string name = fmt::format("override \"{}\"", assignment);
  const std::size_t equals = assignment.find('=');
  expects(equals != std::string::npos && equals > 0,
          fmt::format("{}: found no key before \"=\", needs key.path=value", name));
  nlohmann::json* place = &document;
  const std::string path = assignment.substr(0, equals);
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    expects(!key.empty(), fmt::format("{}: found an empty key, needs key.path=value", name));
    if (place->is_null()) *place = nlohmann::json::object();
    expects(place->is_object(), fmt::format("{}: found a key below {}, needs an object there", name,
                                            place->type_name()));
    place = &(*place)[key];
    begin = end + 1;
  }
  *place = override_value(assignment.substr(equals + 1), name);
}

}  // namespace penstock::detail
