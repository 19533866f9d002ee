#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "checkpoint/mapped_file.hpp"

namespace penstock::detail {

/// A text file in memory: mapped, or unpacked if its name ends in `.xz`.
class TextFile {
 public:
  /// Errors: NotFound, System; for `.xz` also CorruptFile if it is damaged or unpacks to more than
  ///         1 GiB, and Unsupported in a build without liblzma.
  static TextFile open(const std::filesystem::path& file);

  std::string_view text() const { return is_packed_ ? unpacked_ : mapped_.text(); }

 private:
  MappedFile mapped_;
  std::string unpacked_;
  bool is_packed_ = false;
};

/// The content of an xz file. `source` names it in errors. Errors: as for `.xz` above.
std::string unpack_xz(std::string_view packed, std::string_view source);

}  // namespace penstock::detail
