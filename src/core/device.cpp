#include "penstock/core/device.hpp"

#include "core/buffer_cuda.hpp"
#include "core/build_config.hpp"

namespace penstock {

std::string to_string(Device device) {
  if (device.kind == DeviceKind::Cpu) return "cpu";
  return "cuda:" + std::to_string(device.index);
}

int cuda_device_count() {
  if constexpr (build::has_cuda) return detail::cuda_visible_devices();
  return 0;
}

}  // namespace penstock
