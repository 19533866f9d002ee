#include "penstock/engram/engram_gate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const TensorInfo& tensor) {
  const auto bytes = file.bytes(tensor);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

template <typename T>
std::vector<T> tensor_values(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* tensor = file.find(name);
  return tensor == nullptr ? std::vector<T>{} : values<T>(file, *tensor);
}

/// Neighbouring bf16 numbers differ by 1; numbers of unlike sign by the steps over zero.
int ulp_distance(BF16 a, BF16 b) {
  const auto ordered = [](BF16 x) {
    const int magnitude = x.bits & 0x7FFF;
    return (x.bits & 0x8000) != 0 ? -magnitude : magnitude;
  };
  return std::abs(ordered(a) - ordered(b));
}

struct Case {
  EngramGateShape shape;
  std::vector<BF16> hidden, kv, q_weight, k_weight;
  std::vector<std::uint8_t> mask;
  float eps = 1e-20F;

  std::vector<BF16> run() const {
    std::vector<BF16> out(hidden.size(), BF16{0xFFFF});
    engram_gate(shape, {.hidden = hidden,
                        .kv = kv,
                        .q_weight = q_weight,
                        .k_weight = k_weight,
                        .eps = eps,
                        .mask = mask,
                        .out = out});
    return out;
  }
};

TEST(EngramGate, AgreesWithTheGoldenCasesWithinOneUnit) {
  const auto file = SafetensorsFile::open(PENSTOCK_TEST_DATA "/golden/engram_gate.safetensors");
  int cases = 0;
  for (;; ++cases) {
    const std::string prefix = std::to_string(cases) + ".";
    const TensorInfo* hidden = file.find(prefix + "hidden");
    if (hidden == nullptr) break;
    Case c;
    c.shape = {hidden->shape[0], static_cast<int>(hidden->shape[1]),
               static_cast<int>(hidden->shape[2])};
    c.hidden = values<BF16>(file, *hidden);
    c.kv = tensor_values<BF16>(file, prefix + "kv");
    c.q_weight = tensor_values<BF16>(file, prefix + "q_weight");
    c.k_weight = tensor_values<BF16>(file, prefix + "k_weight");
    c.mask = tensor_values<std::uint8_t>(file, prefix + "mask");
    c.eps = static_cast<float>(tensor_values<double>(file, prefix + "eps").at(0));
    const auto expected = tensor_values<double>(file, prefix + "out");
    const std::vector<BF16> out = c.run();
    ASSERT_EQ(out.size(), expected.size());
    const std::size_t token_elements =
        static_cast<std::size_t>(c.shape.hc_mult) * static_cast<std::size_t>(c.shape.dim);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!c.mask.empty() && c.mask[i / token_elements] == 0) {
        ASSERT_EQ(out[i], c.hidden[i]) << "case " << cases << " element " << i;
      } else {
        ASSERT_LE(ulp_distance(out[i], to_bf16(static_cast<float>(expected[i]))), 1)
            << "case " << cases << " element " << i;
      }
    }
  }
  EXPECT_GE(cases, 5);
}

TEST(EngramGate, GivesTheWorkedExample) {
  const auto bf16 = [](const std::vector<float>& numbers) {
    std::vector<BF16> out;
    for (const float number : numbers) out.push_back(to_bf16(number));
    return out;
  };
  Case c;
  c.shape = {1, 2, 4};
  c.hidden = bf16({1, -2, .5F, 4, .25F, .5F, -1, 2});
  c.q_weight = bf16({1, .5F, 1, 1, 1, 1, 1, 1});
  c.k_weight = bf16({.5F, 1, 2, 1, 1, 2, 1, .5F});
  c.kv = bf16({2, 1, -1, .5F, 1, -2, 3, -4, 1, -1, 2, -4});
  const std::vector<BF16> expected = bf16(
      {1.602666F, -2.602666F, 1.705332F, 1.589335F, 0.485525F, 0.264475F, -0.528950F, 1.057900F});
  EXPECT_EQ(c.run(), expected);
}

TEST(EngramGate, LeavesAMaskedTokenUntouchedWhateverItsKeysHold) {
  Case c;
  c.shape = {2, 1, 33};
  c.hidden.assign(66, BF16{0x8000});  // -0, which hidden + 0 would turn into +0
  c.kv.assign(2 * 66, kBF16NaN);
  c.q_weight.assign(33, to_bf16(1));
  c.k_weight.assign(33, to_bf16(1));
  c.mask = {0, 1};
  const std::vector<BF16> out = c.run();
  for (std::size_t i = 0; i < 33; ++i) EXPECT_EQ(out[i].bits, 0x8000);
  for (std::size_t i = 33; i < 66; ++i) EXPECT_EQ(out[i], kBF16NaN);
}

TEST(EngramGate, TreatsADotOfZeroAsPositive) {
  Case c;
  c.shape = {1, 1, 1};
  c.hidden = {BF16{}};
  c.kv = {to_bf16(1), to_bf16(1)};
  c.q_weight = {to_bf16(1)};
  c.k_weight = {to_bf16(1)};
  const double gate = 1 / (1 + std::exp(-1e-3));
  EXPECT_EQ(c.run()[0], to_bf16(static_cast<float>(gate)));
}

TEST(EngramGate, RefusesSizesThatDoNotFitBeforeItWrites) {
  Case c;
  c.shape = {1, 2, 4};
  c.hidden.assign(8, BF16{});
  c.kv.assign(11, BF16{});
  c.q_weight.assign(8, BF16{});
  c.k_weight.assign(8, BF16{});
  try {
    c.run();
    FAIL() << "a kv of 11 elements was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_STREQ(error.what(), "engram_gate: kv has 11 elements, 12 are needed");
  }
}

}  // namespace
}  // namespace penstock
