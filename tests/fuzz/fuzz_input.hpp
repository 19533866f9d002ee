#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "penstock/core/error.hpp"

// What the fuzzers share. A finding is a signal of a sanitizer, a failed FUZZ_CHECK, a time-out, or
// any exception but penstock::Error.
namespace penstock::fuzz {

inline void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs a reader on a hostile input, which it may refuse: as bad input, in one line that starts
/// with `source`.
template <typename Read>
void read_hostile(std::string_view source, Read read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    check(error.code() == ErrorCode::CorruptFile || error.code() == ErrorCode::InvalidArgument,
          "the code of the error does not say bad input");
    check(message.starts_with(source), "the message does not start with the source");
    check(message.find('\n') == std::string_view::npos, "the message has more than one line");
    check(message.size() < 2000, "the message is too long to read");
  }
}

/// A file without a place on disk, for readers that take a path. Rewritten for every input.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    check(descriptor_ >= 0, "memfd_create failed");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void write(std::string_view bytes) const {
    check(::ftruncate(descriptor_, 0) == 0, "ftruncate failed");
    const auto written = ::pwrite(descriptor_, bytes.data(), bytes.size(), 0);
    check(written == static_cast<ssize_t>(bytes.size()), "pwrite failed");
  }

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

}  // namespace penstock::fuzz
