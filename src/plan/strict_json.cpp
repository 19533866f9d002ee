#include "plan/strict_json.hpp"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

using Json = nlohmann::json;

// Keys seen so far in every object that is open, innermost last.
class DuplicateKeyGuard {
 public:
  explicit DuplicateKeyGuard(std::string_view source) : source_(source) {}

  void see(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event != Json::parse_event_t::key) return;
    const auto& key = parsed.get_ref<const std::string&>();
    if (open_.back().insert(key).second) return;
    throw Error(
        ErrorCode::CorruptFile,
        fmt::format("{}: found the key \"{}\" twice in one object, needs it once", source_, key));
  }

 private:
  std::string_view source_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Json parse_strict_json(std::string_view text, std::string_view source) {
  DuplicateKeyGuard guard(source);
  try {
    return Json::parse(text, [&guard](int /*depth*/, Json::parse_event_t event, Json& parsed) {
      guard.see(event, parsed);
      return true;
    });
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::CorruptFile, fmt::format("{}: not JSON: {}", source, error.what()));
  }
}

}  // namespace penstock::detail
