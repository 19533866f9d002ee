#include "table/sharing/memory_limit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"

namespace penstock::detail {
namespace {

namespace fs = std::filesystem;

/// The spelling of one version of control groups.
struct Version {
  const char* limit;
  const char* usage;
  std::vector<std::string_view> reclaimable;  // lines of memory.stat
};

const Version kVersion2{"memory.max", "memory.current", {"active_file", "inactive_file"}};
const Version kVersion1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_active_file", "total_inactive_file"}};

// Version 1 writes "no limit" as the largest multiple of a page; nothing real is this large.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{}) return std::nullopt;
  return value;
}

std::optional<std::int64_t> read_number(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  if (!(in >> word)) return std::nullopt;
  return parse_number(word);
}

/// The number after each of `keys` in a file of "key number" lines, added up.
std::int64_t sum_of_lines(const fs::path& file, const std::vector<std::string_view>& keys) {
  std::ifstream in(file);
  std::string key;
  std::string number;
  std::int64_t sum = 0;
  while (in >> key && std::getline(in, number)) {
    if (std::ranges::find(keys, key) == keys.end()) continue;
    const auto digits = number.find_first_of("0123456789");
    if (digits != std::string::npos) sum += parse_number(number.substr(digits)).value_or(0);
  }
  return sum;
}

std::optional<MemoryLimit> limit_of_group(const fs::path& folder, const Version& version) {
  const auto limit = read_number(folder / version.limit);
  const auto usage = read_number(folder / version.usage);
  if (!limit || !usage || *limit >= kNoLimit) return std::nullopt;
  const std::int64_t reclaimable = sum_of_lines(folder / "memory.stat", version.reclaimable);
  const std::int64_t used = std::max<std::int64_t>(0, *usage - reclaimable);
  return MemoryLimit{.limit_bytes = *limit,
                     .free_bytes = std::max<std::int64_t>(0, *limit - used),
                     .group = folder.string()};
}

/// The tightest limit from `group` up to the root of the hierarchy.
std::optional<MemoryLimit> tightest(const fs::path& root, const fs::path& group,
                                    const Version& version) {
  std::optional<MemoryLimit> best;
  fs::path relative = group.relative_path();
  for (;;) {
    const auto limit = limit_of_group(relative.empty() ? root : root / relative, version);
    if (limit && (!best || limit->free_bytes < best->free_bytes)) best = limit;
    if (relative.empty()) return best;
    relative = relative.parent_path();
  }
}

/// Whether a line of /proc/self/cgroup, "id:controllers:path", is about memory under version 1.
bool has_memory_controller(std::string_view controllers) {
  return fmt::format(",{},", controllers).find(",memory,") != std::string::npos;
}

}  // namespace

std::optional<MemoryLimit> memory_limit(const MemoryFiles& files) {
  std::ifstream in(files.proc / "self" / "cgroup");
  std::string line;
  std::optional<MemoryLimit> best;
  while (std::getline(in, line)) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path group = line.substr(second + 1);
    std::optional<MemoryLimit> limit;
    if (controllers.empty()) limit = tightest(files.cgroup, group, kVersion2);
    if (has_memory_controller(controllers)) {
      limit = tightest(files.cgroup / "memory", group, kVersion1);
    }
    if (limit && (!best || limit->free_bytes < best->free_bytes)) best = limit;
  }
  return best;
}

void check_memory_limit(std::int64_t bytes, const MemoryFiles& files) {
  const auto limit = memory_limit(files);
  if (limit && bytes > limit->free_bytes) {
    throw Error(
        ErrorCode::OutOfMemory,
        fmt::format("{} bytes of host memory are needed, the control group {} has {} of its "
                    "{} bytes free",
                    bytes, limit->group, limit->free_bytes, limit->limit_bytes));
  }
  const std::int64_t available_kib = sum_of_lines(files.proc / "meminfo", {"MemAvailable:"});
  if (available_kib > 0 && bytes / 1024 > available_kib) {
    log(LogLevel::Warning,
        fmt::format("{} bytes of host memory are needed, {} KiB are available now", bytes,
                    available_kib));
  }
}

void check_node_memory(std::int64_t bytes, int numa_node, const MemoryFiles& files) {
  std::ifstream in(files.sys / fmt::format("devices/system/node/node{}/meminfo", numa_node));
  std::string line;
  while (std::getline(in, line)) {  // "Node 0 MemTotal:       24651884 kB"
    const auto at = line.find("MemTotal:");
    if (at == std::string::npos) continue;
    const auto digits = line.find_first_of("0123456789", at);
    const auto kib = digits == std::string::npos ? std::nullopt : parse_number(line.substr(digits));
    if (!kib || bytes / 1024 <= *kib) return;
    throw Error(ErrorCode::OutOfMemory,
                fmt::format("{} bytes of host memory are needed, NUMA node {} has {} KiB", bytes,
                            numa_node, *kib));
  }
}

}  // namespace penstock::detail
