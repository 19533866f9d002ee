#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda/check.hpp"
#include "penstock/core/stream.hpp"

namespace penstock::cuda {

/// Size of a launch. One dimension is enough for everything that Penstock does.
struct LaunchShape {
  int blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;
};

/// Launches a kernel on the current device. The only place that launches, so that no launch goes
/// unchecked.
///
/// Async:  one kernel on `stream`. Legal in capture.
/// Errors: System with `name` and the shape if the launch is refused.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape,
            StreamRef stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream.get();
  const cudaError_t status =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (status != cudaSuccess) {
    throw_cuda_error(status, name,
                     std::to_string(shape.blocks) + " blocks of " + std::to_string(shape.threads) +
                         " threads, " + std::to_string(shape.shared_bytes) + " bytes shared",
                     CodeLocation::current());
  }
}

/// Loads a kernel now, so that its first launch, which may be part of a capture, need not.
template <typename... Parameters>
void load_kernel(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  PENSTOCK_CUDA_CHECK(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
}

}  // namespace penstock::cuda
