#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "penstock/core/error.hpp"
#include "table/placements/piece_watch.hpp"
#include "table/placements/placements_cuda.hpp"

namespace penstock::detail {
namespace {

// One call of the driver: it can be stopped only between two, and a GiB takes it about 0.05 s.
constexpr std::size_t kChunkBytes = std::size_t{1} << 30;

/// Ranges of host memory that are registered. Unregisters them once, in reverse.
class Registration {
 public:
  Registration() = default;
  ~Registration() {
    for (auto chunk = chunks_.rbegin(); chunk != chunks_.rend(); ++chunk) {
      static_cast<void>(cudaHostUnregister(*chunk));  // at exit the runtime may be gone already
    }
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  void add(void* data, std::size_t bytes, unsigned flags) {
    chunks_.reserve(chunks_.size() + 1);
    const cudaError_t status = cudaHostRegister(data, bytes, flags);
    if (status != cudaSuccess) {
      cuda::throw_cuda_error(status, "cudaHostRegister",
                             fmt::format("{} bytes of host memory, after {} GiB", bytes,
                                         chunks_.size() * kChunkBytes >> 30),
                             CodeLocation::current());
    }
    chunks_.push_back(data);
  }

 private:
  std::vector<void*> chunks_;
};

int attribute(cudaDeviceAttr name, Device device) {
  int value = 0;
  PENSTOCK_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, device.index));
  return value;
}

unsigned registration_flags(Access access, Device device) {
  constexpr unsigned kFlags = cudaHostRegisterMapped | cudaHostRegisterPortable;
  if (access == Access::ReadWrite) return kFlags;
  if (attribute(cudaDevAttrHostRegisterReadOnlySupported, device) == 0) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("{} cannot register memory that this process may only read; placement "
                            "host would work",
                            to_string(device)));
  }
  return kFlags | cudaHostRegisterReadOnly;
}

/// Pieces are registered one by one, so a GPU can read across their borders only if it addresses
/// host memory as the host does.
void check_addresses(Device device) {
  if (attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, device) != 0) return;
  throw Error(ErrorCode::Unsupported,
              fmt::format("{} does not use the host's addresses for registered memory; placement "
                          "device would work",
                          to_string(device)));
}

}  // namespace

PinnedMemory pin_cuda(std::span<const std::byte> memory, Device device, Access access,
                      const StopFlag& stop) {
  if (memory.empty()) return {};
  const cuda::DeviceGuard guard(device);
  check_addresses(device);
  const unsigned flags = registration_flags(access, device);
  auto registration = std::make_shared<Registration>();
  PieceWatch watch("cudaHostRegister for " + to_string(device), memory.size());
  for (std::size_t done = 0; done < memory.size();) {
    watch.pass(done, stop);
    const std::size_t bytes = std::min(kChunkBytes, memory.size() - done);
    // The driver takes a pointer to what it will not write: the flag says so where it matters.
    registration->add(const_cast<std::byte*>(memory.data()) + done, bytes, flags);
    done += bytes;
  }
  return {.registration = std::move(registration), .device_data = memory.data()};
}

}  // namespace penstock::detail
