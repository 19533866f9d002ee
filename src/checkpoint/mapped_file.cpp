#include "checkpoint/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/unique_fd.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& file, std::string_view call, int error) {
  const auto code = error == ENOENT || error == ENOTDIR ? ErrorCode::NotFound : ErrorCode::System;
  throw Error(
      code, fmt::format("{}: {}: {}", file.string(), call, std::generic_category().message(error)));
}

}  // namespace

MappedFile MappedFile::open(const std::filesystem::path& file) {
  // O_NONBLOCK: opening a named pipe would wait for its writer.
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) refuse(file, "open", errno);
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) refuse(file, "fstat", errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::System, fmt::format("{}: not a regular file", file.string()));
  }
  MappedFile mapped;
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return mapped;  // mmap refuses an empty range
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) refuse(file, "mmap", errno);
  mapped.data_ = static_cast<const std::byte*>(data);
  mapped.size_ = size;
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string_view MappedFile::text() const {
  return {reinterpret_cast<const char*>(data_), size_};
}

}  // namespace penstock::detail
