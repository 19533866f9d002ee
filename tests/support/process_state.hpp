#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

// What this process holds, as the kernel sees it; for tests that nothing is left behind.
namespace penstock::test {

inline int count_entries(const std::string& folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

/// Descriptors other than pipes. Those are not counted since the undefined-behaviour sanitizer opens
/// one for a moment, on any thread, to find out whether it may read an object's type.
inline int open_descriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // closed by another thread while we look
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && !target.starts_with("pipe:")) ++count;
  }
  return count;
}

/// Whether this process comes down to `count` threads: one that was joined is listed a moment longer.
inline bool comes_down_to_threads(int count) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (count_entries("/proc/self/task") > count) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
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
