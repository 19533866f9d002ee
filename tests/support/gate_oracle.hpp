#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "penstock/core/dtype.hpp"

// The gate from its definition, in plain double arithmetic. Never calls the library's products.
namespace penstock::oracle {

/// Random numbers of a gate: hidden states of unit size, weights that keep projections near 1.
inline std::vector<BF16> normal_bf16(std::int64_t count, double deviation, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  std::vector<BF16> values(static_cast<std::size_t>(count));
  for (auto& value : values) value = to_bf16(static_cast<float>(normal(generator)));
  return values;
}

/// x w^T for x [tokens, hidden] and w [rows, hidden].
inline std::vector<double> project(std::span<const BF16> x, std::span<const BF16> w,
                                   std::int64_t tokens, std::int64_t rows, std::int64_t hidden) {
  std::vector<double> z;
  z.reserve(static_cast<std::size_t>(tokens * rows));
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t row = 0; row < rows; ++row) {
      double sum = 0.0;
      for (std::int64_t i = 0; i < hidden; ++i) {
        sum += double{to_float(x[static_cast<std::size_t>(token * hidden + i)])} *
               double{to_float(w[static_cast<std::size_t>(row * hidden + i)])};
      }
      z.push_back(sum);
    }
  }
  return z;
}

/// attn_out * sigmoid(z); each projection governs head_width neighbouring columns.
inline std::vector<double> gate(std::span<const double> z, std::span<const BF16> attn_out,
                                std::int64_t head_width) {
  std::vector<double> out;
  out.reserve(attn_out.size());
  for (std::size_t i = 0; i < attn_out.size(); ++i) {
    const double projection = z[i / static_cast<std::size_t>(head_width)];
    out.push_back(double{to_float(attn_out[i])} / (1.0 + std::exp(-projection)));
  }
  return out;
}

/// Distance of a bf16 number from an exact one, in steps of bf16 at that size.
inline double ulps(BF16 found, double exact) {
  const int exponent = exact == 0.0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::abs(double{to_float(found)} - exact) / std::ldexp(1.0, exponent - 7);
}

}  // namespace penstock::oracle
