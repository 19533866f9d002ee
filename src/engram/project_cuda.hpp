#pragma once

#include <memory>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/matmul.hpp"
#include "penstock/core/stream.hpp"

namespace penstock::detail {

/// The CUDA half of EngramInjection::project().
class DeviceProjection {
 public:
  virtual ~DeviceProjection() = default;

  /// out = rows weight^T on the object's device, enqueued on `stream`.
  virtual void run(const MatmulShape& shape, const BF16* rows, const BF16* weight, BF16* out,
                   StreamRef stream) = 0;
};

/// Errors: Unsupported if cuBLASLt cannot be opened.
std::unique_ptr<DeviceProjection> make_device_projection(Device device);

}  // namespace penstock::detail
