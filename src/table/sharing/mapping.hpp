#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

enum class Access { Read, ReadWrite };

/// Owns a range of mapped memory. Move-only; empty after a move. Zero bytes are a legal, empty
/// mapping.
class Mapping {
 public:
  Mapping() noexcept = default;
  ~Mapping() { reset(); }
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Zeroed memory of this process, aligned to huge pages and advised to use them. Not yet reserved.
  ///
  /// Errors: OutOfMemory with the bytes asked for.
  static Mapping anonymous(std::size_t bytes);

  /// A shared view of the first `bytes` of a file, aligned to huge pages.
  ///
  /// Errors: OutOfMemory, System.
  static Mapping shared(int fd, std::size_t bytes, Access access);

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// Takes the memory behind every page now, on several threads, so that a shortage is an error
  /// here and never a signal later. Contents do not change.
  ///
  /// Errors: OutOfMemory with the bytes asked for; PeerFailed if stopped.
  void reserve(const StopFlag& stop) const;

  /// Enters the pages into this process's page table, so that reads take no faults. Best effort; ends
  /// early if stopped.
  void prefault_for_reading(const StopFlag& stop) const noexcept;

  /// From now on a write through this mapping is a fault of the writer.
  void make_read_only() const;

  void reset() noexcept;

 private:
  Mapping(void* base, std::size_t span_bytes, std::byte* data, std::size_t bytes) noexcept;

  void* base_ = nullptr;  // what munmap gets: data_ less the alignment
  std::size_t span_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// What the pages of a mapping are, for the status: "4 KiB pages" or "98 % huge pages".
std::string describe_pages(const Mapping& mapping);

/// Drops the pages of a read-only file mapping from this process, not from the page cache: after a
/// long copy out of a file they would count as memory of this process. Partial pages are kept.
void drop_file_pages(std::span<const std::byte> bytes) noexcept;

/// Says that reads of a file mapping will be at random places: a fault then reads one page.
void expect_random_reads(std::span<const std::byte> bytes) noexcept;

}  // namespace penstock::detail
