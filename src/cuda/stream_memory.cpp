#include "cuda/stream_memory.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"

namespace penstock::cuda {

std::byte* allocate_async(Device device, std::size_t bytes, StreamRef stream) {
  const DeviceGuard guard(device);
  void* data = nullptr;
  if (const cudaError_t status = cudaMallocAsync(&data, bytes, stream.get());
      status != cudaSuccess) {
    throw_cuda_error(status, "cudaMallocAsync",
                     fmt::format("{} bytes asked for on {}", bytes, to_string(device)),
                     CodeLocation::current());
  }
  return static_cast<std::byte*>(data);
}

void free_async(Device device, std::byte* data, StreamRef stream) noexcept {
  int previous = 0;
  if (cudaGetDevice(&previous) != cudaSuccess) return;  // the runtime is unloading
  static_cast<void>(cudaSetDevice(device.index));
  static_cast<void>(cudaFreeAsync(data, stream.get()));
  static_cast<void>(cudaSetDevice(previous));
}

void copy_rows_async(Device device, const std::byte* from, std::int64_t from_stride, std::byte* to,
                     std::int64_t to_stride, std::int64_t row_bytes, std::int64_t rows,
                     StreamRef stream) {
  if (rows == 0 || row_bytes == 0) return;
  const DeviceGuard guard(device);
  const auto size = [](std::int64_t bytes) { return static_cast<std::size_t>(bytes); };
  PENSTOCK_CUDA_CHECK(cudaMemcpy2DAsync(to, size(to_stride), from, size(from_stride),
                                        size(row_bytes), size(rows), cudaMemcpyDeviceToDevice,
                                        stream.get()));
}

void fill_async(Device device, std::byte* data, std::byte value, std::size_t bytes,
                StreamRef stream) {
  if (bytes == 0) return;
  const DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaMemsetAsync(data, std::to_integer<int>(value), bytes, stream.get()));
}

}  // namespace penstock::cuda
