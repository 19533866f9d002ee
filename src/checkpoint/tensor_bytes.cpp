#include "checkpoint/tensor_bytes.hpp"

#include <algorithm>

namespace penstock::detail {

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; })) return std::nullopt;
  // Before the product, so that the other sizes of an empty tensor may be anything.
  if (std::ranges::find(shape, 0) != shape.end()) return 0;
  auto bits = static_cast<std::uint64_t>(element_bits(dtype));
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

}  // namespace penstock::detail
