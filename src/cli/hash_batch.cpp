#include "cli/hash_batch.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

using Json = nlohmann::json;

/// Reads values out of one file and says where it stands when one is wrong.
class BatchReader {
 public:
  BatchReader(const std::filesystem::path& file, const ModelConfig& model)
      : file_(file),
        model_(model),
        engram_(*model.engram) {}

  HashBatch read() const {
    const Json root = parse();
    check_keys(root, "the batch", {"requests", "token_map", "dead_token", "config", "rows"});
    if (!root.contains("requests") || !root["requests"].is_array()) {
      refuse("found no array \"requests\", needed: one");
    }
    HashBatch batch{.requests = {}, .token_map = token_map(root), .dead_token = {}};
    if (root.contains("dead_token") && !root["dead_token"].is_null()) {
      batch.dead_token = integer<std::int32_t>(root["dead_token"], "dead_token");
    }
    for (const Json& item : root["requests"]) {
      batch.requests.push_back(request(item, fmt::format("requests[{}]", batch.requests.size())));
    }
    return batch;
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const {
    throw Error(ErrorCode::CorruptFile, fmt::format("{}: {}", file_.string(), message));
  }

  Json parse() const {
    std::ifstream stream(file_, std::ios::binary);
    if (!stream) throw Error(ErrorCode::NotFound, file_.string() + ": cannot be read");
    std::vector<std::set<std::string>> keys;  // of the objects that are open
    const auto refuse_equal_keys = [&](int, Json::parse_event_t event, Json& value) {
      if (event == Json::parse_event_t::object_start) keys.emplace_back();
      if (event == Json::parse_event_t::object_end) keys.pop_back();
      if (event == Json::parse_event_t::key && !keys.back().insert(value).second) {
        refuse(fmt::format("found the key {} twice, needed: once", value.dump()));
      }
      return true;
    };
    try {
      return Json::parse(stream, refuse_equal_keys);
    } catch (const Json::exception& error) {
      refuse(error.what());
    }
  }

  void check_keys(const Json& object, std::string_view where,
                  const std::set<std::string>& known) const {
    if (!object.is_object()) refuse(fmt::format("{} is no object, needed: one", where));
    for (const auto& [key, value] : object.items()) {
      if (known.contains(key)) continue;
      refuse(fmt::format("found the key {} in {}, needed: one of {}", Json(key).dump(), where,
                         Json(known).dump()));
    }
  }

  template <typename Integer>
  Integer integer(const Json& value, std::string_view where) const {
    // A number above 2^63 is unsigned in this parser and would turn negative.
    const bool is_whole = value.is_number_integer() &&
                          (!value.is_number_unsigned() ||
                           value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
    constexpr auto kMin = std::int64_t{std::numeric_limits<Integer>::min()};
    constexpr auto kMax = std::int64_t{std::numeric_limits<Integer>::max()};
    if (!is_whole || value.get<std::int64_t>() < kMin || value.get<std::int64_t>() > kMax) {
      refuse(fmt::format("{} is {}, needed: a whole number from {} to {}", where,
                         value.dump().substr(0, 40), kMin, kMax));
    }
    return static_cast<Integer>(value.get<std::int64_t>());
  }

  std::vector<std::int32_t> integers(const Json& value, const std::string& where) const {
    if (!value.is_array()) refuse(fmt::format("{} is no array, needed: token ids", where));
    std::vector<std::int32_t> numbers;
    numbers.reserve(value.size());
    for (const Json& item : value) {
      numbers.push_back(integer<std::int32_t>(item, fmt::format("{}[{}]", where, numbers.size())));
    }
    return numbers;
  }

  HashRequest request(const Json& item, const std::string& where) const {
    check_keys(item, where, {"ids", "position", "lookback"});
    HashRequest found;
    if (!item.contains("ids"))
      refuse(fmt::format("found no \"ids\" in {}, needed: token ids", where));
    found.ids = integers(item["ids"], where + ".ids");
    if (item.contains("position")) {
      found.position = integer<std::int64_t>(item["position"], where + ".position");
      constexpr std::int64_t kMaxPosition = std::int64_t{1} << 62;
      if (found.position < 0 || found.position > kMaxPosition) {
        refuse(fmt::format("{}.position is {}, needed: 0 to 2^62", where, found.position));
      }
    }
    if (item.contains("lookback")) found.lookback = integers(item["lookback"], where + ".lookback");
    const auto depth = static_cast<std::size_t>(engram_.lookback_depth());
    if (found.lookback.size() > depth) {
      refuse(fmt::format("{}.lookback has {} entries, needed: at most {}", where,
                         found.lookback.size(), depth));
    }
    found.lookback.resize(depth, -1);
    return found;
  }

  TokenMap token_map(const Json& root) const {
    const Json value = root.value("token_map", Json("identity"));
    if (value.is_array()) return TokenMap(integers(value, "token_map"));
    if (!value.is_string()) {
      refuse("token_map is of another kind, needed: \"identity\", an array or a path");
    }
    const auto name = value.get<std::string>();
    if (name != "identity") return load_token_map(file_.parent_path() / name);
    constexpr std::int64_t kMaxSize = std::numeric_limits<std::int32_t>::max();
    return TokenMap::identity(
        static_cast<std::int32_t>(std::min(engram_.compressed_vocab_size, kMaxSize)));
  }

  /// A saved map or a tokenizer, by the file's name.
  TokenMap load_token_map(const std::filesystem::path& file) const {
    const bool is_tokenizer = file.extension() == ".json" || file.extension() == ".xz";
    if (!is_tokenizer) return TokenMap::load(file);
    if (model_.vocab_size == 0) return TokenMap::from_tokenizer(file);
    return TokenMap::from_tokenizer(file, model_.vocab_size);
  }

  const std::filesystem::path& file_;
  const ModelConfig& model_;
  const EngramConfig& engram_;
};

}  // namespace

HashBatch load_hash_batch(const std::filesystem::path& file, const ModelConfig& model) {
  return BatchReader(file, model).read();
}

}  // namespace penstock::cli
