#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/round_up.hpp"
#include "cuda/address_range.hpp"
#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/host_allocation.hpp"
#include "penstock/core/error.hpp"
#include "table/placements/piece_watch.hpp"
#include "table/placements/placements_cuda.hpp"
#include "table/sharing/backing_chain.hpp"
#include "table/sharing/memory_limit.hpp"

namespace penstock::detail {
namespace {

/// Memory that the driver pins once, in pieces, on the NUMA node of the creator's GPU; the other ranks
/// only map it. It has no seals: whoever reads it maps it without the right to write, as far as the
/// driver has such a right.
class CumemBacking : public SharedBacking {
 public:
  CumemBacking(Device device, std::size_t bytes)
      : device_(device),
        bytes_(std::max(bytes, kLeast)) {}

  ~CumemBacking() override {
    if (readable_.data() == nullptr) return;
    // A read may be under way; unmapping need not wait for it as unregistering does. At exit the
    // runtime may be gone already and refuse.
    int previous = 0;
    static_cast<void>(cudaGetDevice(&previous));
    static_cast<void>(cudaSetDevice(device_.index));
    static_cast<void>(cudaDeviceSynchronize());
    static_cast<void>(cudaSetDevice(previous));
  }
  CumemBacking(const CumemBacking&) = delete;
  CumemBacking& operator=(const CumemBacking&) = delete;

  void create() override {
    if (const std::string refusal = cumem_refusal(device_); !refusal.empty()) {
      throw Error(ErrorCode::Unsupported,
                  fmt::format("backing cumem: {}; hugetlb and memfd would work", refusal));
    }
    const auto bytes = static_cast<std::int64_t>(bytes_);
    check_memory_limit(bytes);
    check_node_memory(bytes, cuda::host_numa_node(device_));
    is_creator_ = true;
  }

  void reserve(const StopFlag& stop) override {
    const cuda::DeviceGuard guard(device_);
    PENSTOCK_CUDA_CHECK(cudaFree(nullptr));  // the driver's calls count on a context
    const int node = cuda::host_numa_node(device_);
    const auto all = pieces();
    PieceWatch watch(fmt::format("cuMemCreate on NUMA node {}", node), bytes_);
    for (const Piece& piece : all) {
      watch.pass(piece.offset, stop);
      allocations_.push_back(cuda::HostAllocation::create(device_, node, piece.bytes));
    }
    writable_ = place(all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      // The GPU writes nothing here, but drivers are used to a mapping that a GPU has too.
      static_cast<void>(writable_.allow(all[i].offset, all[i].bytes, gpu(), kReadWrite));
      if (!writable_.allow(all[i].offset, all[i].bytes, allocations_[i].location(), kReadWrite)) {
        throw Error(ErrorCode::Unsupported,
                    "backing cumem: the driver gives the host no access; hugetlb and memfd would "
                    "work");
      }
    }
  }

  std::vector<UniqueFd> descriptors() const override {
    std::vector<UniqueFd> fds;
    for (const auto& allocation : allocations_) fds.emplace_back(allocation.export_fd());
    return fds;
  }

  void map(std::vector<UniqueFd> fds, const StopFlag& stop) override {
    const cuda::DeviceGuard guard(device_);
    PENSTOCK_CUDA_CHECK(cudaFree(nullptr));
    const auto all = pieces();
    if (!is_creator_) import_all(fds, all.size(), stop);
    readable_ = place(all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      stop.check();
      is_read_only_to_device_ &= allow_reading(all[i], gpu(), "the GPU");
      is_read_only_to_host_ &= allow_reading(all[i], allocations_[i].location(), "the host");
    }
  }

  std::byte* writable() const override { return writable_.data(); }

  void seal() override { writable_.reset(); }

  void pin(const StopFlag&) override {
    num_pieces_ = allocations_.size();
    node_ = allocations_.front().location().id;
    allocations_.clear();  // the mapping keeps the memory
  }

  const std::byte* data() const override { return readable_.data(); }

  std::string description() const override {
    return fmt::format("cumem, {} piece{} on NUMA node {}, {}", num_pieces_,
                       num_pieces_ == 1 ? "" : "s", node_, describe_access());
  }

 private:
  struct Piece {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  static constexpr std::size_t kLeast = 1;  // a table without rows has memory too
  static constexpr std::size_t kPage = std::size_t{2} << 20;
  static constexpr CUmemAccess_flags kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
  static constexpr CUmemAccess_flags kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;

  /// The same on every rank: all know the bytes.
  std::vector<Piece> pieces() const {
    const std::size_t granularity = std::max(kPage, cuda::host_granularity(device_));
    const std::size_t total = round_up(bytes_, granularity);
    const std::size_t each = piece_bytes(total);
    std::vector<Piece> result;
    for (std::size_t offset = 0; offset < total; offset += each) {
      result.push_back({offset, std::min(each, total - offset)});
    }
    return result;
  }

  CUmemLocation gpu() const {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device_.index;
    return location;
  }

  void import_all(const std::vector<UniqueFd>& fds, std::size_t count, const StopFlag& stop) {
    if (fds.size() != count) {
      throw Error(ErrorCode::System,
                  fmt::format("backing cumem: found {} descriptors, needed: {} for {} bytes",
                              fds.size(), count, bytes_));
    }
    for (const UniqueFd& fd : fds) {
      stop.check();
      allocations_.push_back(cuda::HostAllocation::import(fd.get(), device_));
    }
  }

  /// Consecutive addresses for all pieces, without access for anybody.
  cuda::AddressRange place(const std::vector<Piece>& all) const {
    cuda::AddressRange range =
        cuda::AddressRange::reserve(device_, all.back().offset + all.back().bytes);
    for (std::size_t i = 0; i < all.size(); ++i) {
      range.place(all[i].offset, allocations_[i].handle(), all[i].bytes);
    }
    return range;
  }

  /// Whether reading is all that `location` may do. Some drivers give the right to read only together
  /// with that to write.
  bool allow_reading(const Piece& piece, const CUmemLocation& location, const char* who) {
    if (readable_.allow(piece.offset, piece.bytes, location, kRead)) return true;
    if (readable_.allow(piece.offset, piece.bytes, location, kReadWrite)) return false;
    throw Error(ErrorCode::Unsupported,
                fmt::format("backing cumem: the driver gives {} no access to it from {}; hugetlb "
                            "and memfd would work",
                            who, to_string(device_)));
  }

  const char* describe_access() const {
    if (is_read_only_to_device_ && is_read_only_to_host_) return "read-only by access flags";
    if (is_read_only_to_device_) return "read-only by access flags for the GPU alone";
    if (is_read_only_to_host_) return "read-only by access flags for the host alone";
    return "writable: the driver has no read-only access";
  }

  Device device_;
  std::size_t bytes_;
  bool is_creator_ = false;
  std::vector<cuda::HostAllocation> allocations_;
  cuda::AddressRange writable_;  ///< Of the creator, until the seal.
  cuda::AddressRange readable_;
  bool is_read_only_to_device_ = true;
  bool is_read_only_to_host_ = true;
  std::size_t num_pieces_ = 0;
  int node_ = 0;
};

}  // namespace

std::string cumem_refusal(Device device) {
  return cuda::shared_host_memory_refusal(device);
}

std::unique_ptr<SharedBacking> make_cumem_backing(Device device, std::size_t bytes) {
  return std::make_unique<CumemBacking>(device, bytes);
}

}  // namespace penstock::detail
