#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

#include "penstock/core/device.hpp"

namespace penstock::cuda {

/// Why processes cannot share host memory of `device`'s driver by descriptor; empty if they can, as
/// far as the device's attributes tell.
std::string shared_host_memory_refusal(Device device);

/// The NUMA node of the host that `device` is nearest to; 0 where the driver does not know.
int host_numa_node(Device device);

/// Host memory comes in multiples of this many bytes.
std::size_t host_granularity(Device device);

/// Host memory that the driver has pinned on a NUMA node, without an address: AddressRange gives it
/// one. Move-only; empty after a move.
///
/// The memory lives until the last allocation, mapping and descriptor of it are gone, in whatever
/// process.
class HostAllocation {
 public:
  HostAllocation() noexcept = default;
  ~HostAllocation() { reset(); }
  HostAllocation(HostAllocation&& other) noexcept;
  HostAllocation& operator=(HostAllocation&& other) noexcept;
  HostAllocation(const HostAllocation&) = delete;
  HostAllocation& operator=(const HostAllocation&) = delete;

  /// New memory, contents unspecified. `bytes` is a multiple of host_granularity(device).
  ///
  /// Errors: OutOfMemory with the bytes and the node.
  /// Cost:   about 0.25 s a GiB: the driver takes and pins every page.
  static HostAllocation create(Device device, int numa_node, std::size_t bytes);

  /// Memory that create() made, here or in another process. The caller keeps `fd`.
  static HostAllocation import(int fd, Device device);

  /// A descriptor for import(). Only of memory made here. The caller owns it.
  int export_fd() const;

  /// Where the memory lies, which is also how the host is named as one that accesses it.
  CUmemLocation location() const;

  /// What the driver knows the memory by.
  unsigned long long handle() const noexcept { return handle_; }

  void reset() noexcept;

 private:
  explicit HostAllocation(unsigned long long handle) noexcept : handle_(handle) {}

  unsigned long long handle_ = 0;
};

}  // namespace penstock::cuda
