#include "cli/hash_batch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

/// Follows a JSON text and stops at what a plain parser lets pass: equal keys in one object, and
/// nesting that no batch has.
class KeyWatch final : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& complaint() const { return complaint_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    complaint_ = fmt::format(
        "found the key {} twice in one object, needed: once",
        nlohmann::json(key).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    return false;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::json::exception&) override {
    complaint_ = fmt::format("found no JSON at byte {}, needed: a batch of requests", byte);
    return false;
  }

 private:
  bool open() {
    constexpr std::size_t kMaxDepth = 64;
    keys_.emplace_back();
    if (keys_.size() <= kMaxDepth) return true;
    complaint_ = fmt::format("found JSON nested deeper than {} levels", kMaxDepth);
    return false;
  }

  bool close() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;  ///< Of the objects and arrays that are open.
  std::string complaint_;
};

/// Reads values out of one file and says where it stands when one is wrong.
class BatchReader {
 public:
  BatchReader(const std::filesystem::path& file, const ModelConfig& model)
      : file_(file),
        model_(model),
        engram_(*model.engram) {}

  HashBatch read() const {
    const nlohmann::json root = parse();
    check_keys(root, "the batch", {"requests", "token_map", "dead_token", "config", "rows"});
    if (!root.contains("requests") || !root["requests"].is_array()) {
      refuse("found no array \"requests\", needed: one");
    }
    HashBatch batch{.requests = {}, .token_map = token_map(root), .dead_token = {}};
    if (root.contains("dead_token") && !root["dead_token"].is_null()) {
      batch.dead_token = whole_number<std::int32_t>(root["dead_token"]);
      if (!batch.dead_token) refuse_number("dead_token", root["dead_token"], 32);
    }
    for (const nlohmann::json& item : root["requests"]) {
      batch.requests.push_back(request(item, fmt::format("requests[{}]", batch.requests.size())));
    }
    return batch;
  }

 private:
  [[noreturn]] void refuse(const std::string& message) const {
    throw Error(ErrorCode::CorruptFile, fmt::format("{}: {}", file_.string(), message));
  }

  nlohmann::json parse() const {
    std::ifstream stream(file_, std::ios::binary);
    if (!stream) throw Error(ErrorCode::NotFound, file_.string() + ": cannot be read");
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    KeyWatch watch;
    if (!nlohmann::json::sax_parse(text, &watch)) refuse(watch.complaint());
    return nlohmann::json::parse(text);
  }

  void check_keys(const nlohmann::json& object, std::string_view where,
                  std::initializer_list<std::string_view> known) const {
    if (!object.is_object()) refuse(fmt::format("{} is no object, needed: one", where));
    for (const auto& [key, value] : object.items()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      refuse(fmt::format(
          "found the key {} in {}, needed: one of {}",
          nlohmann::json(key).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), where,
          fmt::join(known, ", ")));
    }
  }

  /// The value as a whole number of that type; nothing if it is none.
  template <typename Integer>
  static std::optional<Integer> whole_number(const nlohmann::json& value) {
    constexpr auto kMin = std::int64_t{std::numeric_limits<Integer>::min()};
    constexpr auto kMax = std::int64_t{std::numeric_limits<Integer>::max()};
    if (!value.is_number_integer()) return std::nullopt;
    // A number above 2^63 is unsigned in this parser and would turn negative.
    constexpr auto kMaxUnsigned = static_cast<std::uint64_t>(kMax);
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMaxUnsigned)
      return std::nullopt;
    const auto number = value.get<std::int64_t>();
    if (number < kMin || number > kMax) return std::nullopt;
    return static_cast<Integer>(number);
  }

  [[noreturn]] void refuse_number(const std::string& where, const nlohmann::json& value,
                                  int bits) const {
    refuse(fmt::format("{} is {}, needed: a whole number of {} bits", where,
                       value.dump().substr(0, 40), bits));
  }

  std::vector<std::int32_t> integers(const nlohmann::json& value, const std::string& where) const {
    if (!value.is_array()) refuse(fmt::format("{} is no array, needed: token ids", where));
    std::vector<std::int32_t> numbers;
    numbers.reserve(value.size());
    for (const nlohmann::json& item : value) {
      const auto number = whole_number<std::int32_t>(item);
      if (!number) refuse_number(fmt::format("{}[{}]", where, numbers.size()), item, 32);
      numbers.push_back(*number);
    }
    return numbers;
  }

  HashRequest request(const nlohmann::json& item, const std::string& where) const {
    check_keys(item, where, {"ids", "position", "lookback"});
    HashRequest found;
    if (!item.contains("ids"))
      refuse(fmt::format("found no \"ids\" in {}, needed: token ids", where));
    found.ids = integers(item["ids"], where + ".ids");
    if (item.contains("position")) {
      constexpr std::int64_t kMaxPosition = std::int64_t{1} << 62;
      const auto position = whole_number<std::int64_t>(item["position"]);
      if (!position || *position < 0 || *position > kMaxPosition) {
        refuse(fmt::format("{}.position is {}, needed: 0 to 2^62", where,
                           item["position"].dump().substr(0, 40)));
      }
      found.position = *position;
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

  TokenMap token_map(const nlohmann::json& root) const {
    const nlohmann::json value = root.value("token_map", nlohmann::json("identity"));
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
