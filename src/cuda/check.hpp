#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "penstock/core/error.hpp"

// Part of the private CUDA toolbox: the one way in which an answer of the runtime becomes an Error.
namespace penstock::cuda {

/// Throws what `status` means: OutOfMemory for memory, Unsupported where the driver is missing or
/// too old, System for the rest. The runtime's own note of the error is cleared, so that the next
/// call does not report it again; errors that broke the context stay by themselves.
///
/// `call` is the text of the call, `detail` what it was for (may be empty).
[[noreturn]] void throw_cuda_error(cudaError_t status, const char* call, const std::string& detail,
                                   CodeLocation location);

/// Throws if `status` is an error.
inline void check(cudaError_t status, const char* call,
                  CodeLocation location = CodeLocation::current()) {
  if (status != cudaSuccess) throw_cuda_error(status, call, {}, location);
}

}  // namespace penstock::cuda

/// Checks a call of the CUDA runtime and names it in the message.
#define PENSTOCK_CUDA_CHECK(call) ::penstock::cuda::check((call), #call)
