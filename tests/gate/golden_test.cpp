#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "gate/gate_ranks.hpp"

namespace penstock {
namespace {

/// The tensors of a small safetensors file.
class Golden {
 public:
  explicit Golden(const std::string& file) {
    std::ifstream stream(file, std::ios::binary | std::ios::ate);
    bytes_.resize(static_cast<std::size_t>(stream.tellg()));
    stream.seekg(0);
    stream.read(bytes_.data(), static_cast<std::streamsize>(bytes_.size()));
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
    data_ = sizeof(header_bytes) + header_bytes;
    header_ = nlohmann::json::parse(bytes_.substr(sizeof(header_bytes), header_bytes));
  }

  template <typename Value>
  std::vector<Value> values(const std::string& name) const {
    const auto offsets = header_.at(name).at("data_offsets").get<std::vector<std::size_t>>();
    std::vector<Value> result((offsets[1] - offsets[0]) / sizeof(Value));
    std::memcpy(result.data(), bytes_.data() + data_ + offsets[0], offsets[1] - offsets[0]);
    return result;
  }

  std::vector<std::int64_t> shape(const std::string& name) const {
    return header_.at(name).at("shape").get<std::vector<std::int64_t>>();
  }

 private:
  std::string bytes_;
  std::size_t data_ = 0;
  nlohmann::json header_;
};

class GateGolden : public testing::TestWithParam<int> {
 protected:
  GateGolden()
      : golden_(PENSTOCK_TEST_DATA "/golden/gate_linear.safetensors"),
        prefix_(std::to_string(GetParam()) + ".") {
    const auto x = golden_.shape(prefix_ + "x");
    const auto weight = golden_.shape(prefix_ + "weight");
    const auto attn_out = golden_.shape(prefix_ + "attn_out");
    const bool is_elementwise = attn_out[1] == weight[0];
    problem_.shape = {weight[1], weight[0],
                      is_elementwise ? GatingType::Elementwise : GatingType::Headwise};
    problem_.attn_width = attn_out[1];
    problem_.tokens = {x[0]};
    problem_.weight = golden_.values<BF16>(prefix_ + "weight");
    problem_.x = {golden_.values<BF16>(prefix_ + "x")};
    problem_.attn_out = {golden_.values<BF16>(prefix_ + "attn_out")};
  }

  Golden golden_;
  std::string prefix_;
  GateProblem problem_;
};

TEST_P(GateGolden, FusedFormIsWithinOneStepOfTheExactResult) {
  const auto exact = golden_.values<double>(prefix_ + "out");
  const auto out = run_alone(problem_)[0];
  ASSERT_EQ(out.size(), exact.size());
  for (std::size_t i = 0; i < out.size(); ++i) ASSERT_LE(oracle::ulps(out[i], exact[i]), 1.0) << i;
}

TEST_P(GateGolden, ThreeRoundingFormIsTheReferenceForm) {
  const auto expected = golden_.values<BF16>(prefix_ + "out3");
  const auto out = run_alone(problem_, GateRounding::ThreeTimes)[0];
  ASSERT_EQ(out.size(), expected.size());
  std::size_t equal = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float want = to_float(expected[i]);
    ASSERT_NEAR(to_float(out[i]), want, 1e-2 + 1e-2 * std::abs(want)) << i;
    if (out[i] == expected[i]) ++equal;
  }
  EXPECT_GE(static_cast<double>(equal), 0.99 * static_cast<double>(out.size()));
}

TEST_P(GateGolden, OracleAgreesWithTheGoldenProjections) {
  const auto& shape = problem_.shape;
  const auto z = oracle::project(problem_.x[0], problem_.weight, problem_.tokens[0],
                                 shape.output_size, shape.hidden_size);
  const auto expected = golden_.values<double>(prefix_ + "z");
  ASSERT_EQ(z.size(), expected.size());
  for (std::size_t i = 0; i < z.size(); ++i) ASSERT_NEAR(z[i], expected[i], 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Cases, GateGolden, testing::Range(0, 4));

}  // namespace
}  // namespace penstock
