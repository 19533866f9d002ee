#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

#include "penstock/core/dtype.hpp"

namespace penstock::detail {

inline constexpr int kGateThreads = 256;
inline constexpr int kVectorElements = 8;  // bf16 numbers of one 16-byte access
inline constexpr int kVectorsPerThread = 4;

/// 1 / (1 + exp(-z)); the quotient is 0 where the exponential is infinite.
__device__ inline float sigmoid(float z) {
  return 1.0F / (1.0F + __expf(-z));
}

__device__ inline float widen(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

/// Two bf16 numbers as the CPU writes them: rounded to nearest even, NaN as 0x7FC0.
__device__ inline std::uint32_t narrow_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits = 0;
  memcpy(&bits, &pair, sizeof(bits));
  // The conversion writes every NaN as 0x7FFF, which is no other number's code.
  return bits ^ (__vcmpeq2(bits, 0x7FFF7FFFU) & 0x003F003FU);
}

__device__ inline std::uint16_t narrow(float value) {
  return static_cast<std::uint16_t>(narrow_pair(value, 0.0F));
}

__device__ inline float low_of(std::uint32_t pair) {
  return __uint_as_float(pair << 16);
}

__device__ inline float high_of(std::uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}

__device__ inline std::uint32_t gated_pair(std::uint32_t z, std::uint32_t attn) {
  return narrow_pair(low_of(attn) * sigmoid(low_of(z)), high_of(attn) * sigmoid(high_of(z)));
}

__device__ inline uint4 gated_vector(const uint4& z, const uint4& attn) {
  return {gated_pair(z.x, attn.x), gated_pair(z.y, attn.y), gated_pair(z.z, attn.z),
          gated_pair(z.w, attn.w)};
}

}  // namespace penstock::detail
