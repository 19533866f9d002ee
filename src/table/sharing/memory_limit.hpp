#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace penstock::detail {

/// Where the kernel tells about memory. Tests give a folder of their own.
struct MemoryFiles {
  std::filesystem::path proc = "/proc";
  std::filesystem::path sys = "/sys";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
};

/// What a control group still allows this process.
struct MemoryLimit {
  std::int64_t limit_bytes = 0;
  std::int64_t free_bytes = 0;  ///< Page cache that the kernel can give up counts as free.
  std::string group;            ///< The control group's folder.
};

/// The tightest limit over this process's control group and its parents, version 2 or 1; nothing
/// where no group limits memory.
std::optional<MemoryLimit> memory_limit(const MemoryFiles& files = {});

/// Refuses an allocation that a control group would answer by killing processes.
///
/// Errors: OutOfMemory with the bytes asked for, the limit and the group. A machine that has fewer
///         bytes available right now only warns: guests grow on demand.
void check_memory_limit(std::int64_t bytes, const MemoryFiles& files = {});

/// Refuses memory of one NUMA node that the node does not have. Where the kernel does not tell what
/// it has, nothing is refused.
///
/// Errors: OutOfMemory with the bytes asked for, the node and what it has.
void check_node_memory(std::int64_t bytes, int numa_node, const MemoryFiles& files = {});

}  // namespace penstock::detail
