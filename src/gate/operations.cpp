#include "gate/operations.hpp"

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {

std::unique_ptr<GateOperations> make_gate_operations(Device device, std::int64_t output_size) {
  switch (device.kind) {
    case DeviceKind::Cpu: return make_gate_operations_cpu();
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) return make_gate_operations_cuda(device, output_size);
      static_cast<void>(output_size);
      throw Error(ErrorCode::Unsupported, "GateLinear: built without PENSTOCK_WITH_CUDA");
  }
  throw Error(ErrorCode::Internal, "GateLinear: not a DeviceKind");
}

}  // namespace penstock::detail
