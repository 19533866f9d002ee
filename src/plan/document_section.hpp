#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::detail {

// Beyond any machine, and small enough that the product of two sizes fits 64 bits.
inline constexpr int kLargestInteger = 1 << 30;

/// Reads the keys of one JSON object, with types and ranges checked. A key that is absent or null
/// leaves its destination as it is. `finish` refuses the keys that nobody has asked for.
///
/// Errors: InvalidArgument with the key path, the value found and what is needed, for all members.
class DocumentSection {
 public:
  /// `path` is empty for the document itself. The object must outlive the section.
  DocumentSection(const nlohmann::json& object, std::string path, std::string_view source);

  void read(const char* key, bool& out);
  void read(const char* key, std::optional<bool>& out);
  void read(const char* key, std::string& out);
  void read(const char* key, std::optional<std::string>& out);
  void read(const char* key, std::optional<std::vector<int>>& out);
  void read_integer(const char* key, int& out, int at_least);
  void read_integer(const char* key, std::optional<int>& out, int at_least,
                    int at_most = kLargestInteger);
  void read_integer(const char* key, std::optional<std::int64_t>& out, int at_least);

  /// An object whose own keys are not looked at, as text.
  void read_opaque_object(const char* key, std::optional<std::string>& out);

  /// The object under `key`; nothing if absent or null.
  std::optional<DocumentSection> section(const char* key);

  void finish() const;

 private:
  const nlohmann::json* value_of(const char* key);
  std::string path_of(std::string_view key) const;
  [[noreturn]] void refuse(std::string_view key, const nlohmann::json& found,
                           std::string_view needs) const;
  int integer(std::string_view key, const nlohmann::json& value, int at_least,
              int at_most = kLargestInteger) const;

  const nlohmann::json* object_;
  std::string path_;
  std::string source_;
  std::vector<std::string> known_keys_;
};

}  // namespace penstock::detail
