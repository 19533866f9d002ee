#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

// bf16 numbers on the device, with Penstock's NaN.
namespace penstock::cuda {

/// Two floats as bf16, `low` in the low half: to nearest, ties to even, subnormals kept, NaN 0x7FC0.
__device__ inline std::uint32_t to_bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits = 0;
  memcpy(&bits, &pair, sizeof(bits));
  // The conversion writes every NaN as 0x7FFF, which is no other number's code.
  return bits ^ (__vcmpeq2(bits, 0x7FFF7FFFU) & 0x003F003FU);
}

/// The low and the high half of a pair, as floats.
__device__ inline float low_to_float(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float high_to_float(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}

}  // namespace penstock::cuda
