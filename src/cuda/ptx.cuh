#pragma once

#include <cuda_runtime.h>

// Single instructions that CUDA C++ has no word for, each named after what it does.
namespace penstock::cuda {

/// Eight bytes of memory that nobody writes during the kernel, or zeros where `condition` does not
/// hold; `address` is not read then.
///
/// As an `if` the compiler joins load and zero behind the load, and so waits for one row before it
/// asks for the next.
__device__ inline uint2 load_or_zero(bool condition, const uint2* address) {
  uint2 value;
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  setp.ne.s32 p, %3, 0;\n"
      "  mov.b32 %0, 0;\n"
      "  mov.b32 %1, 0;\n"
      "  @p ld.global.nc.v2.b32 {%0, %1}, [%2];\n"
      "}"
      : "=r"(value.x), "=r"(value.y)
      : "l"(address), "r"(static_cast<int>(condition)));
  return value;
}

}  // namespace penstock::cuda
