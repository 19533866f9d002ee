#include "table/sharing/mapping.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <utility>

#include "penstock/core/parallel.hpp"
#include "table/sharing/system_error.hpp"

namespace penstock::detail {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// One range of a parallel populate: long enough to be worth a call, short enough to stop soon.
constexpr std::size_t kPopulateBytes = std::size_t{64} << 20;

std::size_t page_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::byte* align_up(void* address, std::size_t alignment) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::byte*>(address) + (alignment - value % alignment) % alignment;
}

/// Calls madvise on ranges of the mapping, in parallel. Gives the first errno, or 0.
int advise_in_parallel(std::byte* data, std::size_t bytes, int advice, const StopFlag& stop) {
  std::atomic<int> error{0};
  const auto ranges = static_cast<std::int64_t>((bytes + kPopulateBytes - 1) / kPopulateBytes);
  parallel_for(ranges, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end && error == 0; ++i) {
      stop.check();
      const std::size_t offset = static_cast<std::size_t>(i) * kPopulateBytes;
      const std::size_t size = std::min(kPopulateBytes, bytes - offset);
      if (::madvise(data + offset, size, advice) != 0) error = errno;
    }
  });
  return error;
}

/// The whole pages inside `bytes`.
std::span<std::byte> whole_pages(std::span<const std::byte> bytes) {
  auto* first = align_up(const_cast<std::byte*>(bytes.data()), page_bytes());
  const std::byte* end = bytes.data() + bytes.size();
  if (first >= end) return {};
  const auto size = static_cast<std::size_t>(end - first);
  return {first, size - size % page_bytes()};
}

}  // namespace

Mapping::Mapping(void* base, std::size_t span_bytes, std::byte* data, std::size_t bytes) noexcept
    : base_(base),
      span_bytes_(span_bytes),
      data_(data),
      bytes_(bytes) {}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      span_bytes_(std::exchange(other.span_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    base_ = std::exchange(other.base_, nullptr);
    span_bytes_ = std::exchange(other.span_bytes_, 0);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Mapping::reset() noexcept {
  if (base_ != nullptr) ::munmap(base_, span_bytes_);
  base_ = nullptr;
  data_ = nullptr;
  span_bytes_ = bytes_ = 0;
}

Mapping Mapping::anonymous(std::size_t bytes) {
  if (bytes == 0) return {};
  const std::size_t span_bytes = bytes + kHugePage;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* base = ::mmap(nullptr, span_bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (base == MAP_FAILED) throw system_error(fmt::format("mmap of {} bytes", span_bytes));
  Mapping mapping(base, span_bytes, align_up(base, kHugePage), bytes);
  // Only whole huge pages, so that the end of the table does not take one that it does not fill.
  ::madvise(mapping.data_, bytes - bytes % kHugePage, MADV_HUGEPAGE);
  return mapping;
}

Mapping Mapping::shared(int fd, std::size_t bytes, Access access) {
  if (bytes == 0) return {};
  const std::size_t span_bytes = bytes + kHugePage;
  void* base = ::mmap(nullptr, span_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw system_error(fmt::format("mmap of {} bytes", span_bytes));
  Mapping mapping(base, span_bytes, align_up(base, kHugePage), bytes);
  const int protection = access == Access::Read ? PROT_READ : PROT_READ | PROT_WRITE;
  // MAP_FIXED replaces part of the range that was just taken, nothing else.
  if (::mmap(mapping.data_, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    throw system_error(fmt::format("mmap of {} bytes of shared memory", bytes));
  }
  ::madvise(mapping.data_, bytes - bytes % kHugePage, MADV_HUGEPAGE);
  return mapping;
}

void Mapping::reserve(const StopFlag& stop) const {
  if (bytes_ == 0) return;
  const int error = advise_in_parallel(data_, bytes_, MADV_POPULATE_WRITE, stop);
  if (error == 0) return;
  // EFAULT is what populate says where a write would raise SIGBUS: the memory is not to be had.
  const bool is_memory = error == ENOMEM || error == EFAULT || error == ENOSPC;
  const char* hint = error == EINVAL ? "; needed: Linux 5.14 or later" : "";
  throw Error(is_memory ? ErrorCode::OutOfMemory : ErrorCode::System,
              errno_text(fmt::format("reserving {} bytes of host memory", bytes_), error) + hint);
}

void Mapping::prefault_for_reading(const StopFlag& stop) const noexcept {
  try {
    advise_in_parallel(data_, bytes_, MADV_POPULATE_READ, stop);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
    // Without it the first reads are slower, that is all.
  }
}

void Mapping::make_read_only() const {
  if (bytes_ == 0) return;
  if (::mprotect(data_, bytes_, PROT_READ) != 0) throw system_error("mprotect");
}

std::string describe_pages(const Mapping& mapping) {
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping.data());
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool is_inside = false;
  std::size_t huge_kib = 0;
  while (std::getline(smaps, line)) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      is_inside = first >= begin && first < begin + mapping.bytes();
      continue;
    }
    std::size_t kib = 0;
    const bool is_huge = line.starts_with("AnonHugePages:") || line.starts_with("ShmemPmdMapped:");
    const auto number = line.find_first_of("0123456789");
    if (is_inside && is_huge && number != std::string::npos) {
      kib = std::stoull(line.substr(number));
      huge_kib += kib;
    }
  }
  if (huge_kib == 0 || mapping.bytes() == 0) return "4 KiB pages";
  return fmt::format("{} % huge pages", huge_kib * 1024 * 100 / mapping.bytes());
}

void drop_file_pages(std::span<const std::byte> bytes) noexcept {
  const auto pages = whole_pages(bytes);
  if (!pages.empty()) ::madvise(pages.data(), pages.size(), MADV_DONTNEED);
}

void expect_random_reads(std::span<const std::byte> bytes) noexcept {
  const auto pages = whole_pages(bytes);
  if (!pages.empty()) ::madvise(pages.data(), pages.size(), MADV_RANDOM);
}

}  // namespace penstock::detail
