#include "table/placements/host_region.hpp"

#include <utility>

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"
#include "table/placements/placements_cuda.hpp"

namespace penstock::detail {

HostRegion::HostRegion(Mapping mapping, Device device, Access access, const StopFlag& stop)
    : mapping_(std::move(mapping)),
      data_(mapping_.data()) {
  switch (device.kind) {
    case DeviceKind::Cpu: return;
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) {
        auto pinned = pin_cuda({mapping_.data(), mapping_.bytes()}, device, access, stop);
        registration_ = std::move(pinned.registration);
        data_ = pinned.device_data;
        return;
      }
      throw Error(ErrorCode::Unsupported, "built without PENSTOCK_WITH_CUDA");
  }
}

}  // namespace penstock::detail
