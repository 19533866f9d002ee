#pragma once

#include <cstddef>
#include <vector>

namespace penstock::detail {

/// Dequantises one row: out[j] = dequantize_element(values[j], scales[j / 32]).
///
/// Shapes: values [head_dim] e4m3 codes, scales [head_dim / 32], out [head_dim] bf16 numbers.
/// Layout: no alignment needed.
void dequantize_row(const std::byte* values, const std::byte* scales, int head_dim, std::byte* out);

/// Code for one kind of processor: dequantises `blocks` blocks of 32 elements.
struct DequantizeKernel {
  const char* name = "";
  void (*run)(const std::byte* values, const std::byte* scales, int blocks,
              std::byte* out) = nullptr;
};

/// What this processor can run, the fastest first. All give the same bits.
std::vector<DequantizeKernel> dequantize_kernels();

}  // namespace penstock::detail
