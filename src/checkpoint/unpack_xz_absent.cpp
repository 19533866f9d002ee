#include <fmt/format.h>

#include "checkpoint/text_file.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {

std::string unpack_xz(std::string_view /*packed*/, std::string_view source) {
  throw Error(ErrorCode::Unsupported,
              fmt::format("{}: built without liblzma, needed: the file unpacked, or a build that "
                          "finds liblzma",
                          source));
}

}  // namespace penstock::detail
