#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

// Huge pages for one test, out of a pool that all processes of the machine share.
namespace penstock::test {

/// Adds pages of 2 MiB to the machine's pool and takes them away again. Tests that do so wait for
/// each other.
class HugePages {
 public:
  explicit HugePages(std::int64_t count)
      : lock_(::open(kLock, O_CREAT | O_RDWR | O_CLOEXEC, 0600)) {
    ::flock(lock_, LOCK_EX);
    before_ = read(kSize);
    const std::int64_t free_before = read(kFree);
    write(before_ + count);
    are_there_ = read(kFree) >= free_before + count;
  }
  ~HugePages() {
    write(before_);
    ::close(lock_);
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;

  bool are_there() const { return are_there_; }

  /// Pages that nobody has.
  static std::int64_t free_pages() { return read(kFree); }

  static constexpr const char* kWhyNot =
      "needs the right to reserve huge pages (vm.nr_hugepages), and memory for them";

 private:
  static constexpr const char* kLock = "/tmp/penstock-test-huge-pages.lock";
  static constexpr const char* kSize = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
  static constexpr const char* kFree = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

  static std::int64_t read(const char* file) {
    std::ifstream in(file);
    std::int64_t count = 0;
    return in >> count ? count : 0;
  }
  static void write(std::int64_t count) { std::ofstream(kSize) << count << std::flush; }

  int lock_;
  std::int64_t before_ = 0;
  bool are_there_ = false;
};

}  // namespace penstock::test
