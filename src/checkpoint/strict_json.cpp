#include "checkpoint/strict_json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::size_t kMaxPrintedBytes = 96;

/// Sees every parse event; keeps the keys of the objects that are open.
class KeyWatch {
 public:
  explicit KeyWatch(std::string_view source) : source_(source) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    switch (event) {
      case nlohmann::json::parse_event_t::object_start: open_.emplace_back(); [[fallthrough]];
      case nlohmann::json::parse_event_t::array_start:
        if (depth >= kMaxDepth) {
          throw_corrupt(source_, fmt::format("JSON nested deeper than {} levels", kMaxDepth));
        }
        break;
      case nlohmann::json::parse_event_t::key:
        if (!open_.back().insert(parsed.get<std::string>()).second) {
          throw_corrupt(source_,
                        fmt::format("key {} stands twice in one object", printable(parsed)));
        }
        break;
      case nlohmann::json::parse_event_t::object_end: open_.pop_back(); break;
      case nlohmann::json::parse_event_t::array_end:
      case nlohmann::json::parse_event_t::value: break;
    }
    return true;
  }

 private:
  std::string_view source_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

void throw_corrupt(std::string_view source, std::string_view message) {
  throw Error(ErrorCode::CorruptFile, fmt::format("{}: {}", source, message));
}

nlohmann::json parse_strict_json(std::string_view text, std::string_view source) {
  KeyWatch watch(source);
  try {
    return nlohmann::json::parse(
        text, [&watch](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
          return watch(depth, event, parsed);
        });
  } catch (const nlohmann::json::parse_error& error) {
    throw_corrupt(source, fmt::format("not valid JSON at byte {} of {}", error.byte, text.size()));
  } catch (const nlohmann::json::exception&) {
    throw_corrupt(source, "a JSON number is out of range");
  }
}

std::string printable(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxPrintedBytes) {
    text.resize(kMaxPrintedBytes);
    text += "...";
  }
  return text;
}

std::string in_quotes(std::string_view text) {
  return printable(nlohmann::json(std::string(text.substr(0, kMaxPrintedBytes))));
}

}  // namespace penstock::detail
