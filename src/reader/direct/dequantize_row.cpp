#include "reader/direct/dequantize_row.hpp"

#include <array>
#include <cstdint>
#include <cstring>

#include "penstock/core/dtype.hpp"

namespace penstock::detail {
namespace {

constexpr int kBlock = 32;  // elements under one scale byte

// Scale bytes with which every finite code gives zero or a normal bf16 number. The smallest code
// but zero is 2^-9 (exponent field 118 under scale byte 127), the largest 1.75 * 2^8 (field 135);
// fields 1 to 254 are normal.
constexpr int kFirstPlainScale = 127 - 118 + 1;
constexpr int kLastPlainScale = 127 + 254 - 135;

constexpr std::uint16_t field(int exponent) {
  return static_cast<std::uint16_t>(exponent << 7);
}

/// One code under a plain scale byte. `shift` is (byte - 127) in the place of bf16's exponent.
/// Written without branches or wide types, so that compilers turn the loop over it into vectors
/// of 16-bit lanes.
[[gnu::always_inline]] inline std::uint16_t plain_element(std::uint8_t code, std::uint16_t shift) {
  const auto u16 = [](int value) { return static_cast<std::uint16_t>(value); };
  const std::uint16_t magnitude = code & 0x7F;
  const std::uint16_t sign = u16((code & 0x80) << 8);
  // Normal codes keep their fraction; subnormal ones (1 to 7 times 2^-9) are normalised.
  std::uint16_t bits = u16((magnitude << 4) + field(120));
  bits = magnitude < 8 ? u16((magnitude << 5) + field(119)) : bits;
  bits = magnitude < 4 ? u16((magnitude << 6) + field(118)) : bits;
  bits = magnitude < 2 ? field(118) : bits;
  bits = u16(bits + shift);
  bits = magnitude == 0 ? u16(0) : bits;
  bits = u16(bits | sign);
  return magnitude == 0x7F ? kBF16NaN.bits : bits;
}

[[gnu::always_inline]] inline void dequantize_block(const std::uint8_t* codes, std::uint8_t scale,
                                                    std::uint16_t* out) {
  if (scale < kFirstPlainScale || scale > kLastPlainScale) {
    for (int i = 0; i < kBlock; ++i) out[i] = dequantize_element(codes[i], scale).bits;
    return;
  }
  const auto shift = static_cast<std::uint16_t>((scale - 127) * (1 << 7));
  for (int i = 0; i < kBlock; ++i) out[i] = plain_element(codes[i], shift);
}

[[gnu::always_inline]] inline void dequantize_blocks(const std::byte* values,
                                                     const std::byte* scales, int blocks,
                                                     std::byte* out) {
  const auto* codes = reinterpret_cast<const std::uint8_t*>(values);
  for (int block = 0; block < blocks; ++block) {
    std::array<std::uint16_t, kBlock> numbers;
    dequantize_block(codes + std::ptrdiff_t{kBlock} * block,
                     std::to_integer<std::uint8_t>(scales[block]), numbers.data());
    std::memcpy(out + static_cast<std::ptrdiff_t>(sizeof(numbers)) * block, numbers.data(),
                sizeof(numbers));
  }
}

// One body, compiled for three widths of vectors; the arithmetic is the same.
void blocks_portable(const std::byte* values, const std::byte* scales, int blocks, std::byte* out) {
  dequantize_blocks(values, scales, blocks, out);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void blocks_avx2(const std::byte* values, const std::byte* scales,
                                         int blocks, std::byte* out) {
  dequantize_blocks(values, scales, blocks, out);
}

[[gnu::target("avx512bw,avx512vl")]] void blocks_avx512(const std::byte* values,
                                                        const std::byte* scales, int blocks,
                                                        std::byte* out) {
  dequantize_blocks(values, scales, blocks, out);
}

void add_x86_kernels(std::vector<DequantizeKernel>& kernels) {
  if (__builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    kernels.push_back({"avx512", blocks_avx512});
  }
  if (__builtin_cpu_supports("avx2") != 0) kernels.push_back({"avx2", blocks_avx2});
}
#else
void add_x86_kernels(std::vector<DequantizeKernel>&) {}
#endif

}  // namespace

std::vector<DequantizeKernel> dequantize_kernels() {
  std::vector<DequantizeKernel> kernels;
  add_x86_kernels(kernels);
  kernels.push_back({"portable", blocks_portable});
  return kernels;
}

void dequantize_row(const std::byte* values, const std::byte* scales, int head_dim,
                    std::byte* out) {
  static const DequantizeKernel fastest = dequantize_kernels().front();
  fastest.run(values, scales, head_dim / kBlock, out);
}

}  // namespace penstock::detail
