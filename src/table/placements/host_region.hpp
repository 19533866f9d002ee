#pragma once

#include <cstddef>
#include <memory>

#include "penstock/core/device.hpp"
#include "table/sharing/mapping.hpp"

namespace penstock::detail {

/// Mapped host memory, and its registration where a GPU reads it. Move-only.
class HostRegion {
 public:
  HostRegion() = default;

  /// Errors: those of pin_cuda.
  HostRegion(Mapping mapping, Device device, Access access, const StopFlag& stop);

  const Mapping& mapping() const noexcept { return mapping_; }

  /// The first byte, as `device` addresses it.
  const std::byte* data() const noexcept { return data_; }

 private:
  Mapping mapping_;
  std::shared_ptr<const void> registration_;  // after mapping_: it must end first
  const std::byte* data_ = nullptr;
};

}  // namespace penstock::detail
