#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/checkpoint/synthetic_model.hpp"
#include "support/safetensors_oracle.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using test::PlainTensor;
using testing::HasSubstr;
using Tensors = std::map<std::string, PlainTensor>;

/// A model with gates at layers 1 and 3, whose tensors a test can change.
class OpenGateLinear : public testing::Test {
 protected:
  static constexpr std::int64_t kHidden = 64;

  /// `heads` of 16 outputs each.
  void make_model(int heads) {
    SyntheticModelOptions options;
    options.family = ModelFamily::HyV4;
    options.layers = {1, 3};
    options.num_hidden_layers = 4;
    options.hidden_size = kHidden;
    options.num_attention_heads = heads;
    options.v_head_dim = 16;
    options.use_shards = false;
    directory_ = root_ / ("model-" + std::to_string(heads));
    make_synthetic_model(directory_, options);
    tensors_ = test::read_plain_safetensors(test::read_bytes(directory_ / "model.safetensors"));
  }

  static std::string name_of(int layer) { return gate_tensor_names(layer)[0]; }

  void write(const Tensors& tensors) {
    root_.write((directory_ / "model.safetensors").string(),
                test::write_plain_safetensors(tensors));
  }

  std::vector<BF16> weight_of(int layer) const {
    const std::string& bytes = tensors_.at(name_of(layer)).bytes;
    std::vector<BF16> weight(bytes.size() / sizeof(BF16));
    std::memcpy(weight.data(), bytes.data(), bytes.size());
    return weight;
  }

  std::string refusal(int layer, ErrorCode code) const {
    const auto [found, message] = error_of([&] { (void)open_gate_linear(directory_, layer); });
    EXPECT_EQ(found, code) << message;
    return message;
  }

  test::TempDir root_;
  std::filesystem::path directory_;
  Tensors tensors_;
};

std::vector<BF16> forward(GateLinear& gate, const GateProblem& problem, int rank = 0) {
  std::vector<BF16> out(problem.attn_out[static_cast<std::size_t>(rank)].size());
  GateCall call = call_of(problem, rank, out);
  call.token_counts = problem.tokens;
  gate.forward(call);
  return out;
}

TEST_F(OpenGateLinear, TakesTheLayerThatIsNamed) {
  make_model(3);
  for (const int layer : {1, 3}) {
    GateProblem problem = make_problem({kHidden, 48}, {5});
    problem.weight = weight_of(layer);
    GateLinear gate = open_gate_linear(directory_, layer);
    EXPECT_EQ(gate.shape(), problem.shape);
    EXPECT_EQ(forward(gate, problem), run_alone(problem)[0]) << layer;
  }
  EXPECT_NE(weight_of(1), weight_of(3));
}

TEST_F(OpenGateLinear, TakesASquareWeightAsItStands) {
  make_model(4);
  GateProblem problem = make_problem({kHidden, kHidden}, {5});
  problem.weight = weight_of(1);
  GateLinear gate = open_gate_linear(directory_, 1);
  EXPECT_EQ(forward(gate, problem), run_alone(problem)[0]);
}

TEST_F(OpenGateLinear, KeepsTheOwnPartOnly) {
  make_model(3);
  for (const GateStrategy strategy : {GateStrategy::NShard, GateStrategy::KShard}) {
    GateProblem problem = make_problem({kHidden, 48}, {5, 0, 2});
    problem.weight = weight_of(3);
    const auto expected = run_ranks(problem, with(strategy));
    run_thread_group(3, [&](Communicator& comm) {
      GateLinear gate = open_gate_linear(directory_, 3, &comm, with(strategy));
      EXPECT_LE(gate.resident_bytes(), kHidden * 48 * sizeof(BF16) * 11 / 32);  // a third, padded
      EXPECT_EQ(forward(gate, problem, comm.rank()),
                expected[static_cast<std::size_t>(comm.rank())]);
    });
  }
}

TEST_F(OpenGateLinear, KnowsTheMappedNames) {
  make_model(3);
  for (const std::string& name : gate_tensor_names(1)) {
    write({{name, tensors_.at(name_of(1))}});
    EXPECT_NO_THROW((void)open_gate_linear(directory_, 1)) << name;
  }
}

TEST_F(OpenGateLinear, NamesWhatAModelLacks) {
  make_model(3);
  EXPECT_THAT(refusal(2, ErrorCode::NotFound), HasSubstr(name_of(2)));
  EXPECT_THAT(refusal(-1, ErrorCode::NotFound), HasSubstr("-1"));
  SyntheticModelOptions engram;
  engram.engram_vocab_size = 11;
  engram.hidden_size = 64;
  directory_ = root_ / "engram";
  make_synthetic_model(directory_, engram);
  EXPECT_THAT(refusal(1, ErrorCode::NotFound), HasSubstr("the model has no gate"));
}

TEST_F(OpenGateLinear, RefusesAShapeThatConfigDoesNotGive) {
  make_model(3);
  const std::vector<std::vector<std::int64_t>> shapes{
      {kHidden, 48}, {48 * kHidden}, {48, kHidden, 1}, {24, 2 * kHidden}};
  for (const auto& shape : shapes) {
    Tensors changed = tensors_;
    changed.at(name_of(1)).shape = shape;
    write(changed);
    const std::string message = refusal(1, ErrorCode::CorruptFile);
    EXPECT_THAT(message, HasSubstr("model.safetensors: " + name_of(1) + " is ["));
    EXPECT_THAT(message, HasSubstr("config.json needs [48, 64]"));
    EXPECT_NO_THROW((void)open_gate_linear(directory_, 3));  // which is as it was
  }
}

TEST_F(OpenGateLinear, RefusesOtherDtypes) {
  make_model(3);
  for (const auto& [dtype, bytes] :
       std::map<std::string, std::size_t>{{"F16", 2}, {"F32", 4}, {"F8_E4M3", 1}}) {
    Tensors changed = tensors_;
    changed.at(name_of(1)) = {
        dtype, {48, kHidden}, std::string(std::size_t{48 * kHidden} * bytes, '\0')};
    write(changed);
    EXPECT_THAT(refusal(1, ErrorCode::Unsupported), HasSubstr(" is " + dtype + ", needs BF16"));
  }
}

TEST_F(OpenGateLinear, ReadsAWeightThatBeginsAnywhere) {
  make_model(3);
  GateProblem problem = make_problem({kHidden, 48}, {5});
  problem.weight = weight_of(1);
  for (const char* name : {"a", "ab"}) {  // which moves the data by one byte, or by two
    Tensors shifted = tensors_;
    shifted[name] = {"U8", {1}, "x"};
    write(shifted);
    GateLinear gate = open_gate_linear(directory_, 1);
    EXPECT_EQ(forward(gate, problem), run_alone(problem)[0]) << name;
  }
}

TEST_F(OpenGateLinear, FailsOnEveryRankIfItFailsOnOne) {
  make_model(3);
  const auto good = directory_;
  make_model(4);
  Tensors changed = tensors_;
  changed.at(name_of(1)).shape = {32, 2 * kHidden};
  write(changed);
  run_thread_group(3, [&](Communicator& comm) {
    const auto [code, message] =
        error_of([&] { (void)open_gate_linear(comm.rank() == 1 ? directory_ : good, 1, &comm); });
    EXPECT_EQ(code, ErrorCode::CorruptFile) << message;
    EXPECT_THAT(message, HasSubstr(comm.rank() == 1 ? "open_gate_linear: " : "rank 1 failed: "));
    EXPECT_THAT(message, HasSubstr("config.json needs [64, 64]"));
  });
}

}  // namespace
}  // namespace penstock
