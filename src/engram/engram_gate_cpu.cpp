#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "engram/engram_gate_impl.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock::detail {
namespace {

constexpr std::size_t kLanes = 16;
using Lanes = std::array<float, kLanes>;

float sum_of(Lanes lanes) {
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

/// The three sums of one copy of one token, sixteen lanes each: the order of additions is fixed,
/// and the compiler can keep every sum in one vector register.
struct GateSums {
  Lanes hidden_squares{};
  Lanes key_squares{};
  Lanes products{};

  void add(std::size_t lane, float hidden, float key, float weight) {
    hidden_squares[lane] += hidden * hidden;
    key_squares[lane] += key * key;
    products[lane] += hidden * weight * key;
  }
};

/// The gate of one copy of one token. `weight` is q * k, which float holds exactly for bf16 factors.
float gate_of(const BF16* hidden, const BF16* key, const float* weight, std::size_t dim,
              float eps) {
  GateSums sums;
  const std::size_t whole = dim / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums.add(lane, to_float(hidden[i + lane]), to_float(key[i + lane]), weight[i + lane]);
    }
  }
  for (std::size_t i = whole; i < dim; ++i) {
    sums.add(i - whole, to_float(hidden[i]), to_float(key[i]), weight[i]);
  }
  const auto width = static_cast<float>(dim);
  const float hidden_rms = 1.0F / std::sqrt(sum_of(sums.hidden_squares) / width + eps);
  const float key_rms = 1.0F / std::sqrt(sum_of(sums.key_squares) / width + eps);
  const float dot = sum_of(sums.products) * (hidden_rms * key_rms * (1.0F / std::sqrt(width)));
  const float magnitude = std::sqrt(std::max(std::abs(dot), kGateClamp));
  const float signed_root = dot < 0.0F ? -magnitude : magnitude;
  return 1.0F / (1.0F + std::exp(-signed_root));
}

std::vector<float> multiply(std::span<const BF16> a, std::span<const BF16> b) {
  std::vector<float> product(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) product[i] = to_float(a[i]) * to_float(b[i]);
  return product;
}

}  // namespace

void engram_gate_cpu(const EngramGateShape& shape, const EngramGateArguments& arguments) {
  const auto dim = static_cast<std::size_t>(shape.dim);
  const auto copies = static_cast<std::size_t>(shape.hc_mult);
  const std::vector<float> weight = multiply(arguments.q_weight, arguments.k_weight);
  constexpr std::int64_t kTokensPerRange = 4;
  parallel_for(shape.tokens, kTokensPerRange, [&](std::int64_t begin, std::int64_t end) {
    for (auto token = static_cast<std::size_t>(begin); token < static_cast<std::size_t>(end);
         ++token) {
      const BF16* hidden = arguments.hidden.data() + token * copies * dim;
      BF16* out = arguments.out.data() + token * copies * dim;
      if (!arguments.mask.empty() && arguments.mask[token] == 0) {
        if (out != hidden) std::copy_n(hidden, copies * dim, out);
        continue;
      }
      const BF16* keys = arguments.kv.data() + token * (copies + 1) * dim;
      const BF16* value = keys + copies * dim;
      for (std::size_t first = 0; first < copies * dim; first += dim) {
        const float gate =
            gate_of(hidden + first, keys + first, weight.data() + first, dim, arguments.eps);
        for (std::size_t i = 0; i < dim; ++i) {
          out[first + i] = to_bf16(to_float(hidden[first + i]) + gate * to_float(value[i]));
        }
      }
    }
  });
}

}  // namespace penstock::detail
