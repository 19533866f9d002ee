#include "cli/run/rank_device.hpp"

#include "penstock/core/error.hpp"

namespace penstock::cli {

Device rank_device(const RunOptions& options, const Communicator& world) {
  if (options.device == DeviceKind::Cpu) return Device::cpu();
  const int devices = cuda_device_count();
  if (devices == 0) {
    throw Error(ErrorCode::Unsupported,
                "run: --device cuda needs a CUDA build and a GPU that this process can use");
  }
  return Device::cuda(world.rank() % devices);
}

}  // namespace penstock::cli
