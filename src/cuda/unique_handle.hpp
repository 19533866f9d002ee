#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/check.hpp"

namespace penstock::cuda {

/// Owns a handle of the CUDA runtime. Move-only; empty after a move.
///
/// The destructor ignores the answer: at exit the runtime may already be unloading.
template <typename Handle, auto destroy>
class UniqueHandle {
 public:
  UniqueHandle() noexcept = default;
  explicit UniqueHandle(Handle handle) noexcept : handle_(handle) {}
  ~UniqueHandle() { reset(); }
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, Handle{});
    }
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;

  Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != Handle{}; }

  void reset() noexcept {
    if (handle_ != Handle{}) static_cast<void>(destroy(std::exchange(handle_, Handle{})));
  }

 private:
  Handle handle_{};
};

using UniqueStream = UniqueHandle<cudaStream_t, cudaStreamDestroy>;
using UniqueEvent = UniqueHandle<cudaEvent_t, cudaEventDestroy>;

enum class StreamPriority { Lowest, Highest };

/// A stream that does not wait for the legacy default stream.
inline UniqueStream make_stream(StreamPriority priority) {
  int lowest = 0;
  int highest = 0;
  PENSTOCK_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  PENSTOCK_CUDA_CHECK(cudaStreamCreateWithPriority(
      &stream, cudaStreamNonBlocking, priority == StreamPriority::Lowest ? lowest : highest));
  return UniqueStream(stream);
}

/// A stream of the lowest priority, so that what runs beside the model yields to it.
inline UniqueStream make_background_stream() {
  return make_stream(StreamPriority::Lowest);
}

/// An event without a time stamp: the cheapest kind.
inline UniqueEvent make_event() {
  cudaEvent_t event = nullptr;
  PENSTOCK_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return UniqueEvent(event);
}

}  // namespace penstock::cuda
