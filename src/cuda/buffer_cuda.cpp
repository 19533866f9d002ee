#include "core/buffer_cuda.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"

namespace penstock::detail {

std::byte* cuda_allocate(Device device, std::size_t bytes) {
  const cuda::DeviceGuard guard(device);
  void* data = nullptr;
  if (const cudaError_t status = cudaMalloc(&data, bytes); status != cudaSuccess) {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    static_cast<void>(cudaMemGetInfo(&free_bytes, &total_bytes));
    cuda::throw_cuda_error(status, "cudaMalloc",
                           fmt::format("{} bytes asked for on {}, {} of {} are free", bytes,
                                       to_string(device), free_bytes, total_bytes),
                           CodeLocation::current());
  }
  return static_cast<std::byte*>(data);
}

void cuda_zero(Device device, std::byte* data, std::size_t bytes) {
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaMemset(data, 0, bytes));
  // cudaMemset returns before it is done, and streams that do not block would overtake it.
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void cuda_free(Device device, std::byte* data) noexcept {
  // cudaFree finds the device by the address, but a context must be current at exit too.
  int previous = 0;
  if (cudaGetDevice(&previous) != cudaSuccess) return;  // the runtime is unloading
  static_cast<void>(cudaSetDevice(device.index));
  static_cast<void>(cudaFree(data));
  static_cast<void>(cudaSetDevice(previous));
}

void cuda_copy_in(Device device, std::byte* data, std::span<const std::byte> bytes) {
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaMemcpy(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  // From pageable memory the call may return when the bytes are staged, not when they have arrived.
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void cuda_copy_out(Device device, std::span<std::byte> bytes, const std::byte* data,
                   StreamRef stream) {
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(
      cudaMemcpyAsync(bytes.data(), data, bytes.size(), cudaMemcpyDeviceToHost, stream.get()));
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
}

int cuda_visible_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // no driver or no device: an answer, and no error of a later call
  return 0;
}

}  // namespace penstock::detail
