#pragma once

#include <cstddef>

namespace penstock::detail {

/// Dequantises one row: out[j] = dequantize_element(values[j], scales[j / 32]).
///
/// Shapes: values [head_dim] e4m3 codes, scales [head_dim / 32], out [head_dim] bf16 numbers.
/// Layout: no alignment needed.
void dequantize_row(const std::byte* values, const std::byte* scales, int head_dim, std::byte* out);

}  // namespace penstock::detail
