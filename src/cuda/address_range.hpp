#pragma once

#include <cstddef>
#include <vector>

#include "cuda/virtual_memory.hpp"
#include "penstock/core/device.hpp"

namespace penstock::cuda {

/// Consecutive addresses of one GPU behind which lie several allocations, so that a kernel sees as
/// one array what lies in different places. Move-only; empty after a move.
///
/// A mapping keeps the memory behind it alive. Through two ranges the same memory is consistent
/// from one kernel or copy to the next, not within one.
class AddressRange {
 public:
  AddressRange() noexcept = default;
  ~AddressRange() { reset(); }
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  /// Addresses without memory. `bytes` is a multiple of granularity_of(device).
  static AddressRange reserve(Device device, std::size_t bytes);

  /// Puts the first `bytes` of `memory` at `offset`; both multiples of the granularity. Nothing may
  /// be there yet.
  void map(std::size_t offset, const VirtualMemory& memory, std::size_t bytes);

  /// Like map(), of an allocation that the driver knows by `handle`, and without access for anybody.
  void place(std::size_t offset, unsigned long long handle, std::size_t bytes);

  /// Lets `location` use what was put at `offset` as `flags` say. False where the driver refuses.
  bool allow(std::size_t offset, std::size_t bytes, const CUmemLocation& location,
             CUmemAccess_flags flags);

  std::byte* data() const noexcept { return data_; }

  /// The caller has made sure that no kernel or copy uses it any more.
  void reset() noexcept;

 private:
  struct Part {
    std::size_t offset = 0;
    std::size_t bytes = 0;
  };

  Device device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<Part> parts_;
};

}  // namespace penstock::cuda
