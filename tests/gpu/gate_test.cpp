#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "gpu/gpu_support.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/engram/engram_gate.hpp"

namespace penstock::gpu {
namespace {

std::vector<BF16> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<BF16> values(count);
  for (auto& value : values) value = to_bf16(normal(random));
  return values;
}

/// The arrays of one gate, on the host.
struct GateCase {
  GateCase(const EngramGateShape& shape_in, bool has_mask) : shape(shape_in) {
    const auto copies =
        static_cast<std::size_t>(shape.hc_mult) * static_cast<std::size_t>(shape.dim);
    const auto tokens = static_cast<std::size_t>(shape.tokens);
    hidden = random_values(tokens * copies, 1);
    kv = random_values(tokens * (copies + static_cast<std::size_t>(shape.dim)), 2);
    q_weight = random_values(copies, 3);
    k_weight = random_values(copies, 4);
    if (!has_mask) return;
    const std::size_t kv_row = copies + static_cast<std::size_t>(shape.dim);
    for (std::size_t token = 0; token < tokens; ++token) {
      mask.push_back(token % 3 == 1 ? 0 : 1);
      // What must not leak: kv of a masked token is not a number, and its hidden is minus zero.
      if (mask.back() != 0) continue;
      std::fill_n(kv.begin() + static_cast<std::ptrdiff_t>(token * kv_row), kv_row, kBF16NaN);
      hidden[token * copies] = BF16{0x8000};
    }
  }

  std::vector<BF16> on_cpu() const {
    std::vector<BF16> out(hidden.size());
    engram_gate(shape, {.hidden = hidden,
                        .kv = kv,
                        .q_weight = q_weight,
                        .k_weight = k_weight,
                        .eps = 1e-20F,
                        .mask = mask,
                        .out = out});
    return out;
  }

  std::vector<BF16> on_gpu() const {
    const Array<BF16> device_kv(kv);
    const Array<BF16> device_q(q_weight);
    const Array<BF16> device_k(k_weight);
    const Array<std::uint8_t> device_mask(mask);
    const Array<BF16> out(hidden);  // in place, as a model does it
    const Stream stream;
    engram_gate(shape,
                {.hidden = out.span(),
                 .kv = device_kv.span(),
                 .q_weight = device_q.span(),
                 .k_weight = device_k.span(),
                 .eps = 1e-20F,
                 .mask = device_mask.span(),
                 .out = out.span()},
                kGpu, stream.ref());
    return out.read(stream.ref());
  }

  EngramGateShape shape;
  std::vector<BF16> hidden;
  std::vector<BF16> kv;
  std::vector<BF16> q_weight;
  std::vector<BF16> k_weight;
  std::vector<std::uint8_t> mask;
};

/// Sizes [T, hc, dim], and whether some tokens are masked.
using GateSizes = std::tuple<EngramGateShape, bool>;

class SanitizerGate : public testing::TestWithParam<GateSizes> {};

TEST_P(SanitizerGate, IsThatOfTheCpuWithinTheToleranceAndKeepsMaskedRows) {
  const auto& [shape, has_mask] = GetParam();
  const GateCase gate(shape, has_mask);
  const auto expected = gate.on_cpu();
  const auto found = gate.on_gpu();
  const auto copies = static_cast<std::size_t>(shape.hc_mult) * static_cast<std::size_t>(shape.dim);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float value = to_float(expected[i]);
    ASSERT_NEAR(to_float(found[i]), value, 0.01F + 0.01F * std::abs(value)) << "at " << i;
    if (has_mask && gate.mask[i / copies] == 0) {
      ASSERT_EQ(found[i].bits, gate.hidden[i].bits);
    }
  }
}

std::string gate_sizes_name(const testing::TestParamInfo<GateSizes>& info) {
  const auto& [shape, has_mask] = info.param;
  return std::to_string(shape.tokens) + "_tokens_" + std::to_string(shape.hc_mult) + "x" +
         std::to_string(shape.dim) + (has_mask ? "_masked" : "");
}

constexpr EngramGateShape kShapes[] = {{0, 4, 96},    {1, 4, 5120}, {5, 4, 96},  {7, 2, 257},
                                       {33, 1, 2048}, {3, 2, 8192}, {2, 2, 8200}};
INSTANTIATE_TEST_SUITE_P(Shapes, SanitizerGate,
                         testing::Combine(testing::ValuesIn(kShapes), testing::Bool()),
                         gate_sizes_name);

}  // namespace
}  // namespace penstock::gpu
