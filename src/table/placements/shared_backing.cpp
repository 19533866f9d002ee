#include "table/placements/shared_backing.hpp"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "core/build_config.hpp"
#include "core/round_up.hpp"
#include "penstock/core/error.hpp"
#include "table/placements/host_region.hpp"
#include "table/placements/placements_cuda.hpp"
#include "table/sharing/huge_pages.hpp"
#include "table/sharing/memory_limit.hpp"
#include "table/sharing/shared_memory.hpp"

namespace penstock::detail {
namespace {

std::size_t whole_pages(std::size_t bytes, PageKind pages) {
  if (pages == PageKind::Default) return bytes;
  return round_up(bytes, kHugePageBytes);
}

/// A file without a path, of ordinary or of huge pages. The creator too reads it through a read-only
/// mapping of a read-only descriptor.
class FileBacking : public SharedBacking {
 public:
  FileBacking(PageKind pages, Device device, std::size_t bytes)
      : pages_(pages),
        device_(device),
        bytes_(whole_pages(bytes, pages)) {}

  void create() override {
    const auto bytes = static_cast<std::int64_t>(bytes_);
    // The pool of huge pages is no part of what a control group's memory limit counts.
    if (pages_ == PageKind::Huge) {
      check_huge_pages(bytes);
    } else {
      check_memory_limit(bytes);
    }
    memory_ = SharedMemory::create(bytes_, pages_);
  }

  void reserve(const StopFlag& stop) override {
    if (pages_ == PageKind::Huge) check_huge_pages(static_cast<std::int64_t>(bytes_));  // still
    writable_ = Mapping::shared(memory_->fd(), bytes_, Access::ReadWrite);
    writable_.reserve(stop);
  }

  std::vector<UniqueFd> descriptors() const override {
    std::vector<UniqueFd> fds;
    fds.push_back(memory_->read_only_fd());
    return fds;
  }

  void map(std::vector<UniqueFd> fds, const StopFlag&) override {
    if (memory_) fds = descriptors();
    if (fds.size() != 1) {
      throw Error(ErrorCode::System,
                  fmt::format("found {} descriptors of shared memory, needed: 1", fds.size()));
    }
    check_shared_memory(fds.front().get(), bytes_);
    readable_ = Mapping::shared(fds.front().get(), bytes_, Access::Read);
  }

  std::byte* writable() const override { return writable_.data(); }

  void seal() override {
    writable_.reset();  // a seal is refused while a writable mapping is left
    memory_->seal();
  }

  void pin(const StopFlag& stop) override {
    memory_.reset();
    region_ = HostRegion(std::move(readable_), device_, Access::Read, stop);
    region_.mapping().prefault_for_reading(stop);
  }

  const std::byte* data() const override { return region_.data(); }

  std::string description() const override {
    if (pages_ == PageKind::Huge) return "hugetlb, 2 MiB pages, sealed";
    return fmt::format("memfd, {}, sealed", describe_pages(region_.mapping()));
  }

 private:
  PageKind pages_;
  Device device_;
  std::size_t bytes_;
  std::optional<SharedMemory> memory_;  ///< Of the creator.
  Mapping writable_;
  Mapping readable_;
  HostRegion region_;
};

std::unique_ptr<SharedBacking> make_cumem(Device device, std::size_t bytes) {
  if constexpr (build::has_cuda) {
    if (device.kind == DeviceKind::Cuda) return make_cumem_backing(device, bytes);
  }
  throw Error(ErrorCode::Unsupported,
              fmt::format("backing cumem needs a CUDA device{}, found device {}; hugetlb and memfd "
                          "would work",
                          build::has_cuda ? "" : " and a build with CUDA", to_string(device)));
}

}  // namespace

std::unique_ptr<SharedBacking> make_shared_backing(HostBacking backing, Device device,
                                                   std::size_t bytes) {
  switch (backing) {
    case HostBacking::CuMem: return make_cumem(device, bytes);
    case HostBacking::Hugetlb: return std::make_unique<FileBacking>(PageKind::Huge, device, bytes);
    case HostBacking::Memfd: return std::make_unique<FileBacking>(PageKind::Default, device, bytes);
    case HostBacking::Auto: break;
  }
  throw Error(ErrorCode::Internal, "make_shared_backing: not a backing that can be made");
}

}  // namespace penstock::detail
