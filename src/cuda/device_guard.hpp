#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#include "penstock/core/device.hpp"

namespace penstock::cuda {

/// Makes a device current for a scope and restores the one before.
///
/// Errors: InvalidArgument for a device that is not CUDA; System if there is no such device.
class DeviceGuard {
 public:
  explicit DeviceGuard(Device device) {
    expects(device.kind == DeviceKind::Cuda,
            "DeviceGuard: the device is cpu, a CUDA device is needed");
    PENSTOCK_CUDA_CHECK(cudaGetDevice(&previous_));
    if (previous_ == device.index) return;
    PENSTOCK_CUDA_CHECK(cudaSetDevice(device.index));
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) static_cast<void>(cudaSetDevice(previous_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// Number of multiprocessors of a device.
inline int multiprocessors(Device device) {
  int count = 0;
  PENSTOCK_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.index));
  return count;
}

}  // namespace penstock::cuda
