#pragma once

#include <cuda.h>

#include <cstddef>

#include "penstock/core/device.hpp"

namespace penstock::cuda {

/// Memory of a GPU that other processes and GPUs of the node can map, with an address here.
/// Move-only; empty after a move.
///
/// The memory lives until the last mapping and the last exported descriptor are gone, whoever made
/// it: a process that leaves takes nothing away from the others.
class VirtualMemory {
 public:
  VirtualMemory() noexcept = default;
  ~VirtualMemory() { reset(); }
  VirtualMemory(VirtualMemory&& other) noexcept;
  VirtualMemory& operator=(VirtualMemory&& other) noexcept;
  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  /// New memory on `device`, contents unspecified. At least 1 byte; rounded up to the granularity.
  ///
  /// Errors: OutOfMemory with the bytes; Unsupported if the device cannot share memory by
  ///         descriptor.
  static VirtualMemory create(Device device, std::size_t bytes);

  /// Memory that create() made for `bytes`, here or in another process, mapped so that `device`
  /// can read it. The caller keeps `fd`.
  ///
  /// Errors: Unsupported if `device` has no access to the GPU where the memory lies.
  static VirtualMemory import(int fd, Device device, std::size_t bytes);

  /// A descriptor for import(). Only of memory made here. The caller owns it.
  int export_fd() const;

  std::byte* data() const noexcept { return data_; }

  /// Bytes that are there: what was asked for, rounded up.
  std::size_t bytes() const noexcept { return mapped_bytes_; }

  /// What the driver knows the memory by.
  unsigned long long handle() const noexcept { return handle_; }

  void reset() noexcept;

 private:
  static VirtualMemory map(unsigned long long handle, Device device, std::size_t bytes,
                           bool is_writable);

  std::byte* data_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  unsigned long long handle_ = 0;  ///< What the driver knows the allocation by; 0 once released.
};

/// Memory of `device` comes in multiples of this many bytes.
std::size_t granularity_of(Device device);

/// What lets `device` read and write a mapping.
CUmemAccessDesc access_of(Device device);

}  // namespace penstock::cuda
