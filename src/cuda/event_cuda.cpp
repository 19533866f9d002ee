#include "core/event_cuda.hpp"

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"

namespace penstock::detail {
namespace {

cudaEvent_t as_event(void* event) {
  return static_cast<cudaEvent_t>(event);
}

}  // namespace

std::shared_ptr<CUstream_st> cuda_make_stream(Device device) {
  const cuda::DeviceGuard guard(device);
  int lowest = 0;
  int highest = 0;
  PENSTOCK_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  PENSTOCK_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return {stream, [](cudaStream_t owned) { static_cast<void>(cudaStreamDestroy(owned)); }};
}

void cuda_synchronize(Device device, StreamRef stream) {
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
}

std::shared_ptr<void> cuda_make_timed_event(Device device) {
  const cuda::DeviceGuard guard(device);
  cudaEvent_t event = nullptr;
  PENSTOCK_CUDA_CHECK(cudaEventCreate(&event));
  return {static_cast<void*>(event),
          [](void* owned) { static_cast<void>(cudaEventDestroy(as_event(owned))); }};
}

void cuda_record(Device device, void* event, StreamRef stream) {
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaEventRecord(as_event(event), stream.get()));
}

void cuda_synchronize_event(Device device, void* event) {
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaEventSynchronize(as_event(event)));
}

float cuda_elapsed_ms(Device device, void* begin, void* end) {
  const cuda::DeviceGuard guard(device);
  float ms = 0;
  PENSTOCK_CUDA_CHECK(cudaEventElapsedTime(&ms, as_event(begin), as_event(end)));
  return ms;
}

}  // namespace penstock::detail
