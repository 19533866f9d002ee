// The dense weights of a layer, from files that a test can change.

#include "penstock/engram/engram_weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "penstock/core/error.hpp"
#include "support/safetensors_oracle.hpp"
#include "support/small_model.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using test::PlainTensor;
using testing::HasSubstr;
using Tensors = std::map<std::string, PlainTensor>;
using Shape = std::vector<std::int64_t>;

constexpr int kLayer = 14;
constexpr std::int64_t kOutputs = 3 * 64;  // of the small model: (hc + 1) * hidden
constexpr std::int64_t kWidth = 2 * 32;    // two columns of 32 elements

template <typename T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

class LoadEngramWeights : public testing::Test {
 protected:
  LoadEngramWeights() : model_(test::make_small_model(root_ / "model", 2, 2)) {
    tensors_ = test::read_plain_safetensors(test::read_bytes(file()));
  }

  std::filesystem::path file() const { return model_.directory / "model.safetensors"; }
  static std::string name(const std::string& part) {
    return "layers." + std::to_string(kLayer) + ".engram." + part;
  }

  EngramWeights load(const Tensors& tensors, int layer = kLayer) const {
    root_.write(file().string(), test::write_plain_safetensors(tensors));
    return load_engram_weights(ModelDir::open(model_.directory), layer);
  }

  std::string refusal(const Tensors& tensors, ErrorCode code, int layer = kLayer) const {
    try {
      (void)load(tensors, layer);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  Tensors with(const std::string& part, const PlainTensor& tensor) const {
    Tensors changed = tensors_;
    changed[name(part)] = tensor;
    return changed;
  }

  /// Gives config.json one more entry.
  void add_to_config(const std::string& entry) const {
    std::string config = test::read_bytes(model_.directory / "config.json");
    config.insert(config.find('{') + 1, entry + ", ");
    root_.write((model_.directory / "config.json").string(), config);
  }

  test::TempDir root_;
  test::SmallModel model_;
  Tensors tensors_;
};

TEST_F(LoadEngramWeights, TakesThoseOfItsLayer) {
  for (const int layer : test::SmallModel::kLayers) {
    const EngramWeights weights = load(tensors_, layer);
    const std::string prefix = "layers." + std::to_string(layer) + ".engram.";
    EXPECT_EQ(weights.hc_mult, 2);
    EXPECT_EQ(weights.dim, 64);
    EXPECT_EQ(weights.row_width, kWidth);
    EXPECT_EQ(weights.eps, 1e-20F);
    EXPECT_EQ(bytes_of(weights.wkv), tensors_.at(prefix + "wkv.weight").bytes);
    EXPECT_EQ(bytes_of(weights.q_weight), tensors_.at(prefix + "q_weight").bytes);
    EXPECT_EQ(bytes_of(weights.k_weight), tensors_.at(prefix + "k_weight").bytes);
  }
}

TEST_F(LoadEngramWeights, RoundsFloats) {
  std::mt19937 random(3);
  std::vector<float> floats(kOutputs * kWidth);
  std::vector<BF16> expected;
  for (float& x : floats) {
    x = static_cast<float>(random()) / 4e9F - 0.5F;
    expected.push_back(to_bf16(x));
  }
  const auto tensors = with("wkv.weight", {"F32", {kOutputs, kWidth}, bytes_of(floats)});
  EXPECT_EQ(load(tensors).wkv, expected);
}

/// Codes and scales of a projection in blocks of 32 rows and 16 columns.
struct Blocks {
  static constexpr std::int64_t kRows = 32;
  static constexpr std::int64_t kColumns = 16;
  std::vector<std::uint8_t> codes;
  std::vector<std::uint8_t> exponents;

  Blocks() : codes(kOutputs * kWidth), exponents(kOutputs / kRows * kWidth / kColumns) {
    std::mt19937 random(4);
    for (auto& code : codes)
      code = static_cast<std::uint8_t>(random() % 0x7F + (random() % 2) * 0x80);
    for (auto& byte : exponents) byte = static_cast<std::uint8_t>(118 + random() % 9);
  }
  std::size_t scale_at(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row / kRows * (kWidth / kColumns) + column / kColumns);
  }
  std::vector<BF16> dequantised() const {
    std::vector<BF16> out;
    for (std::int64_t row = 0; row < kOutputs; ++row) {
      for (std::int64_t column = 0; column < kWidth; ++column) {
        const float code = e4m3_to_float(codes[static_cast<std::size_t>(row * kWidth + column)]);
        out.push_back(to_bf16(code * std::ldexp(1.0F, exponents[scale_at(row, column)] - 127)));
      }
    }
    return out;
  }
  std::vector<float> factors() const {
    std::vector<float> out;
    for (const int exponent : exponents) out.push_back(std::ldexp(1.0F, exponent - 127));
    return out;
  }
  static Shape scales_shape() { return {kOutputs / kRows, kWidth / kColumns}; }
};

TEST_F(LoadEngramWeights, DequantisesBlocksWhateverTheirScalesAre) {
  const Blocks blocks;
  add_to_config(R"("quantization_config": {"weight_block_size": [32, 16]})");
  Tensors tensors = with("wkv.weight", {"F8_E4M3", {kOutputs, kWidth}, bytes_of(blocks.codes)});
  const std::map<std::string, std::string> scales{{"F8_E8M0", bytes_of(blocks.exponents)},
                                                  {"U8", bytes_of(blocks.exponents)},
                                                  {"F32", bytes_of(blocks.factors())}};
  for (const auto& [dtype, bytes] : scales) {
    tensors[name("wkv.scale")] = {dtype, Blocks::scales_shape(), bytes};
    EXPECT_EQ(load(tensors).wkv, blocks.dequantised()) << dtype;
  }
  tensors[name("wkv.scale")] = {"BF16", Blocks::scales_shape(),
                                std::string(blocks.exponents.size() * 2, '\0')};
  EXPECT_THAT(refusal(tensors, ErrorCode::Unsupported),
              HasSubstr("wkv.scale is BF16, only F8_E8M0, U8 and F32 can be read"));
  tensors[name("wkv.scale")] = {"U8", {4, 6}, bytes_of(blocks.exponents)};
  EXPECT_THAT(refusal(tensors, ErrorCode::CorruptFile),
              HasSubstr("wkv.scale has shape [4, 6], config.json needs [6, 4]"));
  tensors.erase(name("wkv.scale"));
  EXPECT_THAT(refusal(tensors, ErrorCode::NotFound), HasSubstr("wkv.scale"));
}

TEST_F(LoadEngramWeights, NeedsTheSizeOfABlockForCodes) {
  const Blocks blocks;
  const auto tensors = with("wkv.weight", {"F8_E4M3", {kOutputs, kWidth}, bytes_of(blocks.codes)});
  EXPECT_THAT(refusal(tensors, ErrorCode::CorruptFile), HasSubstr("weight_block_size"));
}

TEST_F(LoadEngramWeights, RefusesWhatConfigDoesNotGive) {
  struct Part {
    const char* name;
    Shape shape;
    const char* needed;
  };
  const Part parts[] = {{"wkv.weight", {kOutputs, kWidth}, "[192, 64]"},
                        {"q_weight", {2, 64}, "[2, 64]"},
                        {"k_weight", {2, 64}, "[2, 64]"}};
  for (const Part& part : parts) {
    PlainTensor tensor = tensors_.at(name(part.name));
    tensor.shape = {part.shape[1], part.shape[0]};
    const std::string message = refusal(with(part.name, tensor), ErrorCode::CorruptFile);
    EXPECT_THAT(message, HasSubstr("model.safetensors: " + name(part.name) + " has shape ["));
    EXPECT_THAT(message, HasSubstr(std::string("config.json needs ") + part.needed));

    const auto elements = static_cast<std::size_t>(part.shape[0] * part.shape[1]);
    tensor = {"F16", part.shape, std::string(elements * 2, '\0')};
    EXPECT_THAT(refusal(with(part.name, tensor), ErrorCode::Unsupported),
                HasSubstr("is F16, only BF16 and F32 can be read"));

    Tensors missing = tensors_;
    missing.erase(name(part.name));
    EXPECT_THAT(refusal(missing, ErrorCode::NotFound), HasSubstr(part.name));
  }
}

TEST_F(LoadEngramWeights, NamesTheLayersThatThereAre) {
  EXPECT_THAT(refusal(tensors_, ErrorCode::NotFound, 2),
              HasSubstr("layer 2 has no Engram; engram_layer_ids is [1, 14]"));
}

}  // namespace
}  // namespace penstock
