#pragma once

#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#include "penstock/core/stream.hpp"

namespace penstock::cuda {

/// Which capture a stream takes part in; 0: none.
using CaptureId = unsigned long long;

/// The capture that `stream` takes part in now.
inline CaptureId capture_of(StreamRef stream) {
  // The legacy default stream cannot be captured, and must not even be asked during a capture.
  if (stream.get() == nullptr) return 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CaptureId id = 0;
  PENSTOCK_CUDA_CHECK(cudaStreamGetCaptureInfo(stream.get(), &status, &id));
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

}  // namespace penstock::cuda
