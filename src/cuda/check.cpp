#include "cuda/check.hpp"

#include <fmt/format.h>

namespace penstock::cuda {
namespace {

ErrorCode error_code(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation: return ErrorCode::OutOfMemory;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNotSupported:
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion: return ErrorCode::Unsupported;
    default: return ErrorCode::System;  // hundreds of values; all others mean a refused call
  }
}

}  // namespace

void throw_cuda_error(cudaError_t status, const char* call, const std::string& detail,
                      CodeLocation location) {
  cudaGetLastError();  // clears the note; the answer is the one in `status`
  throw Error(error_code(status),
              fmt::format("{}: {} ({}){}{}", call, cudaGetErrorString(status),
                          cudaGetErrorName(status), detail.empty() ? "" : "; ", detail),
              location);
}

}  // namespace penstock::cuda
