#pragma once

#include <cstdint>
#include <vector>

#include "penstock/core/dtype.hpp"

namespace penstock::cli {

/// Marsaglia's xorshift: cheap enough for hundreds of millions of numbers. The words are never 0.
class RandomWords {
 public:
  /// Range: seed is not 0.
  explicit RandomWords(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 7U;
    state_ ^= state_ << 17U;
    return state_;
  }

 private:
  std::uint64_t state_;
};

/// Numbers of mean 0, evenly spread over a range of `width`.
inline std::vector<BF16> random_bf16(std::int64_t count, float width, std::uint64_t seed) {
  std::vector<BF16> values(static_cast<std::size_t>(count));
  RandomWords words(seed);
  for (auto& value : values) {
    value = to_bf16((static_cast<float>(words.next() >> 40U) * 0x1p-24F - 0.5F) * width);
  }
  return values;
}

}  // namespace penstock::cli
