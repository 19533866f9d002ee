#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

/// A word that other devices and the host write; what they wrote before it is then visible too.
__device__ inline std::uint32_t load_acquire(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

/// The other side of load_acquire.
__device__ inline void store_release(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Time of a clock that all multiprocessors share.
__device__ inline std::uint64_t nanoseconds() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

}  // namespace penstock::cuda
