#include "checkpoint/tokenizer_json.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "checkpoint/strict_json.hpp"
#include "checkpoint/text_file.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

constexpr std::size_t kMaxDepth = 64;

/// The ids of tokens, from the vocabulary and from added_tokens.
class TokenIds {
 public:
  explicit TokenIds(std::string_view source) : source_(source) { entries_.reserve(1 << 18); }

  /// An added token may be an entry of the vocabulary too.
  ///
  /// Errors: CorruptFile if it then has another id, or if one list has it twice.
  void add(const std::string& token, std::uint64_t id, bool is_added) {
    const auto [slot, is_new] = entries_.emplace(token, Entry{.id = id});
    Entry& entry = slot->second;
    bool& is_listed = is_added ? entry.is_added : entry.is_in_vocabulary;
    if (entry.id != id || is_listed) {
      detail::throw_corrupt(source_, fmt::format("token {} has two entries, with ids {} and {}",
                                                 detail::in_quotes(token), entry.id, id));
    }
    is_listed = true;
  }

  /// Tokens in the order of their ids, which must be 0, 1, 2 and so on.
  std::vector<std::string> in_order() const {
    if (entries_.empty()) detail::throw_corrupt(source_, "model.vocab has no tokens");
    std::vector<std::string> tokens(entries_.size());
    std::vector<bool> is_taken(entries_.size());
    for (const auto& [token, entry] : entries_) {
      const std::uint64_t id = entry.id;
      if (id >= tokens.size()) continue;  // then some other id has no token
      if (is_taken[id]) {
        detail::throw_corrupt(source_,
                              fmt::format("id {} has two tokens, {} and {}", id,
                                          detail::in_quotes(tokens[id]), detail::in_quotes(token)));
      }
      is_taken[id] = true;
      tokens[id] = token;
    }
    for (std::size_t id = 0; id < is_taken.size(); ++id) {
      if (!is_taken[id]) {
        detail::throw_corrupt(source_, fmt::format("id {} has no token, needed: each id from 0 to "
                                                   "{} once, as there are {} tokens",
                                                   id, tokens.size() - 1, tokens.size()));
      }
    }
    return tokens;
  }

 private:
  struct Entry {
    std::uint64_t id = 0;
    bool is_in_vocabulary = false;
    bool is_added = false;
  };

  std::string source_;
  std::unordered_map<std::string, Entry> entries_;
};

/// The parts of a tokenizer.json that say something to us.
enum class Part {
  Other,
  Document,
  Model,
  ModelType,
  Vocab,
  TokenId,
  ByteFallback,
  WordSuffix,
  Decoder,
  DecoderType,
  AddedTokens,
  AddedToken,
  AddedId,
  AddedContent
};

/// What the value of a part may be.
enum class Kind { Anything, Object, List, Number, Text };

struct PartRow {
  Part part;
  Part parent;
  std::string_view key;  ///< Of the parent; empty: any key, or an element of a list.
  Kind kind;
};

// The first row whose parent and key fit.
constexpr std::array kParts{
    PartRow{Part::Model, Part::Document, "model", Kind::Object},
    PartRow{Part::AddedTokens, Part::Document, "added_tokens", Kind::List},
    PartRow{Part::Decoder, Part::Document, "decoder", Kind::Anything},
    PartRow{Part::ModelType, Part::Model, "type", Kind::Text},
    PartRow{Part::Vocab, Part::Model, "vocab", Kind::Object},
    PartRow{Part::ByteFallback, Part::Model, "byte_fallback", Kind::Anything},
    PartRow{Part::WordSuffix, Part::Model, "end_of_word_suffix", Kind::Anything},
    PartRow{Part::TokenId, Part::Vocab, "", Kind::Number},
    PartRow{Part::DecoderType, Part::Decoder, "type", Kind::Text},
    PartRow{Part::Decoder, Part::Decoder, "", Kind::Anything},
    PartRow{Part::AddedToken, Part::AddedTokens, "", Kind::Object},
    PartRow{Part::AddedId, Part::AddedToken, "id", Kind::Number},
    PartRow{Part::AddedContent, Part::AddedToken, "content", Kind::Text},
};
constexpr PartRow kDocument{Part::Document, Part::Other, "", Kind::Object};
constexpr PartRow kOther{Part::Other, Part::Other, "", Kind::Anything};

std::string_view describe(Kind kind) {
  switch (kind) {
    case Kind::Anything: return "another value";
    case Kind::Object: return "an object";
    case Kind::List: return "a list";
    case Kind::Number: return "a whole number from 0 on";
    case Kind::Text: return "a string";
  }
  throw Error(ErrorCode::Internal, "describe: not a Kind");
}

/// Follows a tokenizer.json event by event and keeps what names tokens. A tree of the whole file
/// would take longer to build than everything else: most of it is merges.
class TokenizerReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit TokenizerReader(std::string_view source) : source_(source), tokens_(source) {}

  /// Errors: CorruptFile if the model is not byte-level BPE, or its ids are not 0, 1, 2 and so on.
  std::vector<std::string> tokens() const {
    if (model_type_ != "BPE" || !is_byte_level_ || has_byte_fallback_ || has_word_suffix_) {
      detail::throw_corrupt(source_,
                            fmt::format("model.type is {}{}{}{}, needed: byte-level BPE",
                                        detail::in_quotes(model_type_),
                                        is_byte_level_ ? "" : " without a ByteLevel decoder",
                                        has_byte_fallback_ ? " with byte_fallback" : "",
                                        has_word_suffix_ ? " with end_of_word_suffix" : ""));
    }
    return tokens_.in_order();
  }

  bool start_object(std::size_t /*elements*/) override { return open(Kind::Object); }
  bool start_array(std::size_t /*elements*/) override { return open(Kind::List); }

  bool end_object() override {
    if (levels_.back().part == Part::AddedToken) add_added_token();
    levels_.pop_back();
    return true;
  }

  bool end_array() override {
    levels_.pop_back();
    return true;
  }

  bool key(std::string& name) override {
    Level& level = levels_.back();
    // Equal tokens of the vocabulary are found by TokenIds, in a faster container.
    if (level.part != Part::Vocab && !level.keys.insert(name).second) {
      detail::throw_corrupt(
          source_, fmt::format("key {} stands twice in one object", detail::in_quotes(name)));
    }
    level.key = name;
    return true;
  }

  bool string(std::string& value) override {
    switch (expect(Kind::Text)) {
      case Part::ModelType: model_type_ = value; break;
      case Part::WordSuffix: has_word_suffix_ = !value.empty(); break;
      case Part::DecoderType: is_byte_level_ = is_byte_level_ || value == "ByteLevel"; break;
      case Part::AddedContent: added_content_ = value; break;
      default: break;  // NOLINT(clang-diagnostic-switch-enum): the other parts say nothing here
    }
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    const Part part = expect(Kind::Number);
    if (part == Part::TokenId) tokens_.add(levels_.back().key, value, false);
    if (part == Part::AddedId) added_id_ = value;
    return true;
  }

  bool boolean(bool value) override {
    if (expect(Kind::Anything) == Part::ByteFallback) has_byte_fallback_ = value;
    return true;
  }

  bool null() override {
    if (part_of_next().part != Part::AddedTokens) expect(Kind::Anything);
    return true;
  }

  bool number_integer(std::int64_t /*value*/) override { return expect_anything(); }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    return expect_anything();
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { return expect_anything(); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    detail::throw_corrupt(source_, fmt::format("not valid JSON at byte {}", position));
  }

 private:
  /// An object or list that is open.
  struct Level {
    Part part = Part::Other;
    std::string key = {};             ///< The one whose value comes next.
    std::set<std::string> keys = {};  ///< All so far.
  };

  PartRow part_of_next() const {
    if (levels_.empty()) return kDocument;
    const Level& parent = levels_.back();
    if (parent.part == Part::Other) return kOther;
    for (const PartRow& row : kParts) {
      if (row.parent == parent.part && (row.key.empty() || row.key == parent.key)) return row;
    }
    return kOther;
  }

  /// The part that the next value belongs to. Errors: CorruptFile if it is of the wrong kind.
  Part expect(Kind found) const {
    const PartRow row = part_of_next();
    if (row.kind != Kind::Anything && row.kind != found) {
      const std::string where = levels_.empty() ? "the file"
                                : levels_.back().key.empty()
                                    ? "an element of added_tokens"
                                    : detail::in_quotes(levels_.back().key);
      detail::throw_corrupt(
          source_, fmt::format("{} is {}, needed: {}", where, describe(found), describe(row.kind)));
    }
    return row.part;
  }

  bool expect_anything() const {
    expect(Kind::Anything);
    return true;
  }

  bool open(Kind kind) {
    if (levels_.size() >= kMaxDepth) {
      detail::throw_corrupt(source_, fmt::format("JSON nested deeper than {} levels", kMaxDepth));
    }
    levels_.push_back({.part = expect(kind)});
    return true;
  }

  void add_added_token() {
    if (!added_content_ || !added_id_) {
      detail::throw_corrupt(source_, "an element of added_tokens has no id or no content");
    }
    tokens_.add(*added_content_, *added_id_, true);
    added_content_.reset();
    added_id_.reset();
  }

  std::string source_;
  TokenIds tokens_;
  std::vector<Level> levels_;
  std::string model_type_;
  bool is_byte_level_ = false;
  bool has_byte_fallback_ = false;
  bool has_word_suffix_ = false;
  std::optional<std::string> added_content_;
  std::optional<std::uint64_t> added_id_;
};

}  // namespace

TokenizerVocabulary detail::parse_tokenizer(std::string_view json, std::string_view source) {
  TokenizerReader reader(source);
  try {
    nlohmann::json::sax_parse(json, &reader);
  } catch (const nlohmann::json::exception&) {
    throw_corrupt(source, "a JSON number is out of range");
  }
  return {reader.tokens()};
}

TokenizerVocabulary load_tokenizer(const std::filesystem::path& file) {
  const auto opened = detail::TextFile::open(file);
  return detail::parse_tokenizer(opened.text(), file.string());
}

}  // namespace penstock
