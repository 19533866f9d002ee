#pragma once

#include <cstddef>
#include <utility>

#include "core/unique_fd.hpp"

namespace penstock::detail {

/// Which pages memory is made of.
enum class PageKind {
  Default,  ///< Those of the kernel; huge ones where it gives them to shared memory.
  Huge,     ///< 2 MiB, out of the pool that the machine has reserved.
};

/// Bytes of a page of PageKind::Huge.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// Memory without a path that several processes map: it is gone when the last of them has let go,
/// however they end.
///
/// Private to the user; its size is fixed from the start, so that no reader can meet SIGBUS.
class SharedMemory {
 public:
  /// Of huge pages, `bytes` must be a multiple of kHugePageBytes. Nothing is reserved yet.
  ///
  /// Errors: OutOfMemory, System; Unsupported where the kernel has no pool of huge pages.
  static SharedMemory create(std::size_t bytes, PageKind pages = PageKind::Default);

  int fd() const noexcept { return fd_.get(); }
  std::size_t bytes() const noexcept { return bytes_; }

  /// A descriptor that allows reading only. Readers map it before the seal: a mapping of fd()
  /// would count as one that could become writable, and the seal would be refused.
  UniqueFd read_only_fd() const;

  /// Forbids every later write and every new writable mapping, in all processes.
  ///
  /// Errors: System while a writable mapping is left.
  void seal() const;

 private:
  SharedMemory(UniqueFd fd, std::size_t bytes) noexcept : fd_(std::move(fd)), bytes_(bytes) {}

  UniqueFd fd_;
  std::size_t bytes_ = 0;
};

/// Errors: System unless `fd` is shared memory of `bytes` bytes whose size cannot change.
void check_shared_memory(int fd, std::size_t bytes);

/// Errors: System unless `fd` is sealed against writing.
void check_sealed(int fd);

}  // namespace penstock::detail
