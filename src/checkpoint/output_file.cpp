#include "checkpoint/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

std::filesystem::path temporary_name(const std::filesystem::path& file) {
  static std::atomic<unsigned> count{0};
  auto name = file;
  name += fmt::format(".tmp-{}-{}", ::getpid(), count.fetch_add(1));
  return name;
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path file)
    : file_(std::move(file)),
      temporary_(temporary_name(file_)) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) refuse("open for writing", errno);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void OutputFile::refuse(std::string_view call, int error) const {
  throw Error(ErrorCode::System, fmt::format("{}: {}: {}", file_.string(), call,
                                             std::generic_category().message(error)));
}

void OutputFile::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse("write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::flush() {
  write_all(buffer_);
  buffer_.clear();
}

void OutputFile::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  if (bytes.size() >= kBufferBytes) return write_all(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void OutputFile::skip(std::uint64_t bytes) {
  flush();
  if (bytes == 0) return;
  size_ += bytes;
  if (::lseek(fd_, static_cast<off_t>(size_), SEEK_SET) < 0) refuse("lseek", errno);
}

void OutputFile::finish() {
  flush();
  // A hole at the end is not part of the file until its length says so.
  if (::ftruncate(fd_, static_cast<off_t>(size_)) != 0) refuse("ftruncate", errno);
  if (::rename(temporary_.c_str(), file_.c_str()) != 0) refuse("rename", errno);
  // Also the last chance to hear of a failed write on a network file system.
  if (::close(std::exchange(fd_, -1)) != 0) refuse("close", errno);
}

}  // namespace penstock::detail
