#include "cli/run/made_up_input.hpp"

#include <cstddef>

namespace penstock::cli {
namespace {

/// The splitmix64 finaliser: every bit of the result depends on every bit of `x`.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

}  // namespace

void fill_input(std::uint64_t seed, std::uint64_t first_index, std::span<BF16> out) {
  const std::uint64_t base = mix(seed + 0x9E3779B97F4A7C15U);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint64_t bits = mix(base + first_index + i);
    const auto unit = static_cast<float>(bits >> 40) * 0x1p-24F;
    out[i] = to_bf16(4.0F * unit - 2.0F);
  }
}

}  // namespace penstock::cli
