#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace penstock::detail {

/// A regular file mapped read-only.
///
/// Range: a file that another process shortens while it is mapped makes reads of the lost part
///        fatal; nothing in this class can tell.
class MappedFile {
 public:
  /// Errors: NotFound if there is no such file; System if it cannot be read or is not a regular
  ///         file. Messages start with the path.
  static MappedFile open(const std::filesystem::path& file);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;  // one owner of the mapping
  MappedFile& operator=(const MappedFile&) = delete;

  /// Empty for an empty file.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace penstock::detail
