#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

// What this process holds, as the kernel sees it; for tests that nothing is left behind.
namespace penstock::test {

inline int count_entries(const std::string& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

inline int open_descriptors() {
  return count_entries("/proc/self/fd");
}

inline std::uint64_t address_space_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t pages = 0;
  statm >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// A figure of /proc/self/status in bytes, for example "VmHWM:".
inline std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::int64_t kib = 0;
  while (status >> word) {
    if (word == key && status >> kib) return kib * 1024;
  }
  return 0;
}

/// Lets the peak of this process's memory (VmHWM) begin anew at what it is now.
inline void reset_peak_memory() {
  std::ofstream("/proc/self/clear_refs") << 5;
}

inline int mappings_of_shared_tables() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int count = 0;
  while (std::getline(maps, line)) {
    if (line.find("penstock-table") != std::string::npos) ++count;
  }
  return count;
}

/// The permissions ("r--s") of the mapping that holds an address.
inline std::string permissions_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  while (std::getline(maps, line)) {
    std::size_t end_of_first = 0;
    const std::uintptr_t first = std::stoull(line, &end_of_first, 16);
    std::size_t length = 0;
    const std::uintptr_t last = std::stoull(line.substr(end_of_first + 1), &length, 16);
    if (value >= first && value < last) return line.substr(end_of_first + 1 + length + 1, 4);
  }
  return "none";
}

}  // namespace penstock::test
