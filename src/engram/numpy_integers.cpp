#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "engram/uint128.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/hash_layout.hpp"

// NumPy's default generator, number for number: SeedSequence spreads the seed, PCG64 (XSL-RR 128/64)
// draws, and Lemire's method brings a draw into range without bias. All of it is part of NumPy's
// stream compatibility, and the multipliers of released models depend on it.
namespace penstock {
namespace {

using detail::UInt128;

/// Eight 32-bit words out of an integer seed of at most 64 bits.
class SeedSequence {
 public:
  explicit SeedSequence(std::uint64_t seed) {
    // The seed's little-endian words; the pool has room for four, the rest are zero.
    pool_ = {hash_mix(static_cast<std::uint32_t>(seed)),
             hash_mix(static_cast<std::uint32_t>(seed >> 32)), hash_mix(0), hash_mix(0)};
    for (std::size_t from = 0; from < pool_.size(); ++from) {
      for (std::size_t to = 0; to < pool_.size(); ++to) {
        if (from != to) pool_[to] = mix(pool_[to], hash_mix(pool_[from]));
      }
    }
  }

  std::array<std::uint64_t, 4> generate() const {
    std::uint32_t constant = 0x8b51f9ddU;
    std::array<std::uint64_t, 4> words{};
    for (std::size_t i = 0; i < 2 * words.size(); ++i) {
      std::uint32_t value = pool_[i % pool_.size()] ^ constant;
      constant *= 0x58f38dedU;
      value *= constant;
      value ^= value >> 16;
      words[i / 2] |= std::uint64_t{value} << (32 * (i % 2));
    }
    return words;
  }

 private:
  std::uint32_t hash_mix(std::uint32_t value) {
    value ^= hash_constant_;
    hash_constant_ *= 0x931e8875U;
    value *= hash_constant_;
    return value ^ (value >> 16);
  }

  static std::uint32_t mix(std::uint32_t x, std::uint32_t y) {
    const std::uint32_t value = 0xca01f9ddU * x - 0x4973f715U * y;
    return value ^ (value >> 16);
  }

  std::uint32_t hash_constant_ = 0x43b0d7e5U;
  std::array<std::uint32_t, 4> pool_{};
};

class Pcg64 {
 public:
  explicit Pcg64(std::uint64_t seed) {
    const auto words = SeedSequence(seed).generate();
    increment_ = (join(words[2], words[3]) << 1) | 1U;
    step();
    state_ += join(words[0], words[1]);
    step();
  }

  std::uint64_t next64() {
    step();
    const auto folded =
        static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
    return std::rotr(folded, static_cast<int>(state_ >> 122));
  }

  /// The low half of a draw, then its high half.
  std::uint32_t next32() {
    has_buffered_ = !has_buffered_;
    if (!has_buffered_) return buffered_;
    const std::uint64_t drawn = next64();
    buffered_ = static_cast<std::uint32_t>(drawn >> 32);
    return static_cast<std::uint32_t>(drawn);
  }

 private:
  static UInt128 join(std::uint64_t high, std::uint64_t low) {
    return (static_cast<UInt128>(high) << 64) | low;
  }

  void step() { state_ = state_ * join(0x2360ED051FC65DA4U, 0x4385DF649FCCF645U) + increment_; }

  UInt128 state_ = 0;
  UInt128 increment_ = 0;
  std::uint32_t buffered_ = 0;
  bool has_buffered_ = false;
};

/// A number in [0, high), high from 2 to 2^32 - 1.
std::uint32_t bounded32(Pcg64& generator, std::uint32_t high) {
  const std::uint32_t threshold = (0U - high) % high;
  for (;;) {
    const std::uint64_t product = std::uint64_t{generator.next32()} * high;
    // NumPy computes the threshold only if the low half is below `high`; the outcome is the same,
    // since the threshold is below `high` too.
    if (static_cast<std::uint32_t>(product) >= threshold) {
      return static_cast<std::uint32_t>(product >> 32);
    }
  }
}

/// A number in [0, high), high above 2^32.
std::uint64_t bounded64(Pcg64& generator, std::uint64_t high) {
  const std::uint64_t threshold = (0U - high) % high;
  for (;;) {
    const UInt128 product = static_cast<UInt128>(generator.next64()) * high;
    if (static_cast<std::uint64_t>(product) >= threshold) {
      return static_cast<std::uint64_t>(product >> 64);
    }
  }
}

std::uint64_t bounded(Pcg64& generator, std::uint64_t high) {
  constexpr std::uint64_t kTwoTo32 = std::uint64_t{1} << 32;
  if (high == 1) return 0;  // without a draw
  if (high < kTwoTo32) return bounded32(generator, static_cast<std::uint32_t>(high));
  if (high == kTwoTo32) return generator.next32();
  return bounded64(generator, high);
}

}  // namespace

std::vector<std::int64_t> numpy_integers(std::uint64_t seed, std::int64_t high, int count) {
  expects(high >= 1, fmt::format("numpy_integers: found high = {}, needed: at least 1", high));
  expects(count >= 0, fmt::format("numpy_integers: found count = {}, needed: at least 0", count));
  Pcg64 generator(seed);
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (auto& value : values) {
    value = static_cast<std::int64_t>(bounded(generator, static_cast<std::uint64_t>(high)));
  }
  return values;
}

}  // namespace penstock
