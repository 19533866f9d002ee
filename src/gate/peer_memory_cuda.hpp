#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/virtual_memory.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"

namespace penstock::detail {

/// A block of GPU memory of every rank, each readable and writable from this rank's device,
/// whether the ranks are threads or processes.
///
/// Peer access between whole devices is never switched on: with it, allocations on one device wait
/// for kernels on the other, and a kernel that waits for another rank would keep that rank waiting.
class PeerMemory {
 public:
  /// Makes `bytes` zero bytes on this rank's `device`; ranks may differ in both. Null where a rank's
  /// device cannot reach another's; then so on all ranks.
  ///
  /// Collective: over `comm`.
  /// Errors:     on every rank if one has no memory.
  static std::unique_ptr<PeerMemory> create(Communicator& comm, Device device, std::size_t bytes);

  std::byte* of(int rank) const { return parts_[static_cast<std::size_t>(rank)].data(); }
  const cuda::VirtualMemory& own() const { return parts_[rank_]; }
  Device device() const { return device_; }

  /// Whether another rank is a thread of this process with the same device.
  bool shares_device() const { return shares_device_; }

 private:
  PeerMemory(Device device, std::size_t rank, std::size_t ranks)
      : device_(device),
        rank_(rank),
        parts_(ranks) {}

  void open(Communicator& comm, std::size_t bytes);

  Device device_;
  std::size_t rank_;
  std::vector<cuda::VirtualMemory> parts_;
  bool shares_device_ = false;
};

}  // namespace penstock::detail
