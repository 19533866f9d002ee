#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock {

/// Maps token ids to compressed ids: tokens whose text is equal after normalisation share one.
///
/// Threads: const members are safe from any thread.
class TokenMap {
 public:
  /// Errors: InvalidArgument for an id below 0, or an empty map.
  explicit TokenMap(std::vector<std::int32_t> ids);

  /// Token i maps to i.
  static TokenMap identity(std::int32_t size);

  /// Builds the map from a tokenizer.json. Each id from the tokenizer's length up to `vocab_size`
  /// is a placeholder and gets a compressed id of its own.
  ///
  /// Errors: as load_tokenizer; InvalidArgument if vocab_size is below the tokenizer's length.
  static TokenMap from_tokenizer(const std::filesystem::path& file,
                                 std::optional<std::int64_t> vocab_size = std::nullopt);

  /// Reads a file written by save(). Errors: NotFound; CorruptFile, also for a wrong checksum.
  static TokenMap load(const std::filesystem::path& file);

  /// Writes the map with its checksum and where it came from. See `docs/formats/token_map.md`.
  void save(const std::filesystem::path& file) const;

  std::span<const std::int32_t> ids() const { return ids_; }

  /// Number of compressed ids: the largest one plus 1.
  std::int32_t size() const { return size_; }

  /// Where the map came from, for people.
  const std::string& provenance() const { return provenance_; }

 private:
  std::vector<std::int32_t> ids_;
  std::int32_t size_ = 0;
  std::string provenance_;
};

}  // namespace penstock
