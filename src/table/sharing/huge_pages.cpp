#include "table/sharing/huge_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "penstock/core/error.hpp"
#include "table/sharing/shared_memory.hpp"

namespace penstock::detail {
namespace {

constexpr auto kPageBytes = static_cast<std::int64_t>(kHugePageBytes);

std::int64_t read_count(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::int64_t count = 0;
  return in >> count ? count : 0;
}

}  // namespace

std::int64_t free_huge_page_bytes(const std::filesystem::path& sys) {
  const auto pool = sys / "kernel/mm/hugepages/hugepages-2048kB";
  const std::int64_t claimed = read_count(pool / "resv_hugepages");
  return std::max<std::int64_t>(0, read_count(pool / "free_hugepages") - claimed) * kPageBytes;
}

void check_huge_pages(std::int64_t bytes, const std::filesystem::path& sys) {
  const std::int64_t free_bytes = free_huge_page_bytes(sys);
  if (bytes <= free_bytes) return;
  throw Error(ErrorCode::OutOfMemory,
              fmt::format("{} huge pages of 2 MiB are needed, {} are free (vm.nr_hugepages); "
                          "backing memfd would work",
                          (bytes + kPageBytes - 1) / kPageBytes, free_bytes / kPageBytes));
}

}  // namespace penstock::detail
