#pragma once

#include <cstdint>
#include <filesystem>

namespace penstock::detail {

/// Bytes of the machine's pool of 2 MiB pages that nobody uses or has a claim on; pages that the
/// kernel may still add (nr_overcommit_hugepages) do not count. 0 where there is no pool. Tests give
/// a folder of their own.
std::int64_t free_huge_page_bytes(const std::filesystem::path& sys = "/sys");

/// Errors: OutOfMemory with the pages needed and free, unless the pool has `bytes`.
void check_huge_pages(std::int64_t bytes, const std::filesystem::path& sys = "/sys");

}  // namespace penstock::detail
