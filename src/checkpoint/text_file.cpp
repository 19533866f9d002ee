#include "checkpoint/text_file.hpp"

namespace penstock::detail {

TextFile TextFile::open(const std::filesystem::path& file) {
  TextFile opened;
  opened.mapped_ = MappedFile::open(file);
  opened.is_packed_ = file.extension() == ".xz";
  if (opened.is_packed_) {
    opened.unpacked_ = unpack_xz(opened.mapped_.text(), file.string());
    opened.mapped_ = {};
  }
  return opened;
}

}  // namespace penstock::detail
