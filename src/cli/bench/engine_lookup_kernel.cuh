#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

// The technique that inference engines use today, written again: a persistent grid of one block per
// multiprocessor (half of them when the read runs beside the model), 16 rows a step, values and
// scales in two arrays, bf16 out.
namespace penstock::cli {

inline constexpr int kEngineThreads = 128;
inline constexpr int kEngineRows = 16;  ///< A step of one block.

/// A byte that is loaded as often as it is written down.
__device__ inline std::uint32_t load_byte(const std::uint8_t* address) {
  std::uint32_t value;
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(address));
  return value;
}

__device__ inline std::uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits = 0;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

/// Grid: any. Block: kEngineThreads: 16 threads a row, 8 rows at a time, two of them in flight.
/// Each element loads its own scale, as a block-pointer program does.
__global__ void __launch_bounds__(kEngineThreads)
    engine_lookup_kernel(const std::uint8_t* values, const std::uint8_t* scales,
                         const std::int32_t* ids, std::uint16_t* out, int rows) {
  const int part = static_cast<int>(threadIdx.x) % 16;
  for (int base = static_cast<int>(blockIdx.x) * kEngineRows; base < rows;
       base += static_cast<int>(gridDim.x) * kEngineRows) {
    uint4 codes[2];
    std::uint32_t scale[2][16];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = base + half * 8 + static_cast<int>(threadIdx.x) / 16;
      const std::int64_t id = r < rows ? ids[r] : 0;
      codes[half] = *reinterpret_cast<const uint4*>(values + id * 256 + part * 16);
#pragma unroll
      for (int e = 0; e < 16; ++e) scale[half][e] = load_byte(scales + id * 8 + part / 2);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = base + half * 8 + static_cast<int>(threadIdx.x) / 16;
      if (r >= rows) continue;
      const std::uint32_t words[4] = {codes[half].x, codes[half].y, codes[half].z, codes[half].w};
      std::uint32_t result[8];
#pragma unroll
      for (int pair = 0; pair < 8; ++pair) {
        const std::uint32_t two = words[pair / 2] >> (16 * (pair % 2));
        const __half2 halves = __half2(__nv_cvt_fp8x2_to_halfraw2(
            static_cast<__nv_fp8x2_storage_t>(two & 0xFFFFU), __NV_E4M3));
        const float2 numbers = __half22float2(halves);
        result[pair] = bf16_pair(numbers.x * __uint_as_float(scale[half][2 * pair] << 23),
                                 numbers.y * __uint_as_float(scale[half][2 * pair + 1] << 23));
      }
      auto* row = reinterpret_cast<uint4*>(out + std::int64_t{r} * 256 + part * 16);
      row[0] = {result[0], result[1], result[2], result[3]};
      row[1] = {result[4], result[5], result[6], result[7]};
    }
  }
}

}  // namespace penstock::cli
