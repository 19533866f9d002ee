#include "table/sharing/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <utility>

#include "table/sharing/system_error.hpp"

namespace penstock::detail {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr unsigned kNoExecSeal = 0x0008U;  // MFD_NOEXEC_SEAL, Linux 6.3

UniqueFd create_file(PageKind pages) {
  constexpr const char* kName = "penstock-table";
  constexpr unsigned kHuge2Mib = 21U << 26U;  // MFD_HUGE_2MB: log2 of the page, shifted
  const bool is_huge = pages == PageKind::Huge;
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (is_huge ? MFD_HUGETLB | kHuge2Mib : 0U);
  UniqueFd fd(::memfd_create(kName, flags | kNoExecSeal));
  if (!fd && errno == EINVAL) fd = UniqueFd(::memfd_create(kName, flags));  // older kernel
  if (fd) return fd;
  if (!is_huge || errno == EMFILE || errno == ENFILE) throw system_error("memfd_create");
  throw Error(ErrorCode::Unsupported, errno_text("memfd_create of huge pages"));
}

/// A file that grows past RLIMIT_FSIZE raises a signal that ends the process, so that the limit is
/// looked up first.
void check_file_size_limit(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  if (bytes <= limit.rlim_cur) return;
  throw Error(
      ErrorCode::OutOfMemory,
      fmt::format("{} bytes of shared memory are needed, the file size limit (ulimit -f) is "
                  "{} bytes",
                  bytes, limit.rlim_cur));
}

int seals_of(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) throw system_error("fcntl(F_GET_SEALS)");
  return seals;
}

}  // namespace

SharedMemory SharedMemory::create(std::size_t bytes, PageKind pages) {
  check_file_size_limit(bytes);
  UniqueFd fd = create_file(pages);
  if (::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) throw system_error("fchmod");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    throw system_error(fmt::format("ftruncate to {} bytes of shared memory", bytes));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) throw system_error("fcntl(F_ADD_SEALS)");
  return {std::move(fd), bytes};
}

UniqueFd SharedMemory::read_only_fd() const {
  const std::string path = fmt::format("/proc/self/fd/{}", fd_.get());
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw system_error("open " + path);
  return fd;
}

void SharedMemory::seal() const {
  if (::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_WRITE | kSizeSeals | F_SEAL_SEAL) != 0) {
    throw system_error("fcntl(F_ADD_SEALS)");
  }
}

void check_shared_memory(int fd, std::size_t bytes) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) throw system_error("fstat");
  const bool is_right_size = std::cmp_equal(status.st_size, bytes);
  if (is_right_size && (seals_of(fd) & kSizeSeals) == kSizeSeals) return;
  throw Error(ErrorCode::System, fmt::format("found shared memory of {} bytes, needed: {} bytes of "
                                             "fixed size",
                                             status.st_size, bytes));
}

void check_sealed(int fd) {
  if ((seals_of(fd) & F_SEAL_WRITE) != 0) return;
  throw Error(ErrorCode::System, "found shared memory that can still be written, needed: a seal");
}

}  // namespace penstock::detail
