#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

namespace penstock::detail {

/// A file that appears under its name only when it is complete.
///
/// Bytes go to a temporary file beside it, which is removed if finish() is not reached. Nothing is
/// synced to the disk.
class OutputFile {
 public:
  /// Errors: System if the temporary file cannot be made. Messages start with the path.
  explicit OutputFile(std::filesystem::path file);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Errors: System, for example when the disk is full.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);

  /// Leaves `bytes` zero bytes that take no room on the disk.
  void skip(std::uint64_t bytes);

  /// Gives the file its name; replaces a file that had it. Call it once, last.
  void finish();

 private:
  void flush();
  void write_all(std::span<const std::byte> bytes);
  [[noreturn]] void refuse(std::string_view call, int error) const;

  std::filesystem::path file_;
  std::filesystem::path temporary_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace penstock::detail
