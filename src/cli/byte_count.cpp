#include "cli/byte_count.hpp"

#include <fmt/format.h>

namespace penstock::cli {

std::string byte_count(std::uint64_t bytes) {
  const auto number = static_cast<double>(bytes);
  if (bytes >= std::uint64_t{1} << 30) return fmt::format("{:.2f} GiB", number / 0x1p30);
  if (bytes >= std::uint64_t{1} << 20) return fmt::format("{:.1f} MiB", number / 0x1p20);
  if (bytes >= std::uint64_t{1} << 10) return fmt::format("{:.1f} KiB", number / 0x1p10);
  return fmt::format("{} bytes", bytes);
}

}  // namespace penstock::cli
