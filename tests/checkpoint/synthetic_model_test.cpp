#include "penstock/checkpoint/synthetic_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using test::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// A model of a few hundred kilobytes.
SyntheticModelOptions small_options() {
  SyntheticModelOptions options = demo_model_options(ModelFamily::DeepSeekV41Flash);
  options.layers = {1, 3};
  options.engram_vocab_size = 101;
  options.num_heads = 2;
  options.max_ngram_size = 3;
  options.head_dim = 64;
  options.hidden_size = 72;  // not a multiple of the quantisation block
  options.hc_mult = 2;
  options.compressed_vocab_size = 50;
  return options;
}

std::string bytes_of(const TensorRef& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

std::map<std::string, std::string> all_tensors(const std::filesystem::path& directory) {
  const auto model = ModelDir::open(directory);
  std::map<std::string, std::string> out;
  for (const auto& name : model.tensor_names()) out[name] = bytes_of(model.find(name).value());
  return out;
}

std::map<std::string, std::string> make(const SyntheticModelOptions& options) {
  const TempDir dir;
  make_synthetic_model(dir / "model", options);
  return all_tensors(dir / "model");
}

std::uint8_t byte_at(const std::string& bytes, std::size_t at) {
  return static_cast<std::uint8_t>(bytes.at(at));
}

float bf16_at(const std::string& bytes, std::size_t at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + 2 * at, 2);
  return to_float(BF16{bits});
}

TEST(SyntheticModel, HasNamesDTypesAndShapesOfTheRealOne) {
  const TempDir dir;
  const auto summary = make_synthetic_model(dir / "m", small_options());
  EXPECT_THAT(summary.files,
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json",
                          "config.json"));
  const auto model = ModelDir::open(dir / "m");
  EXPECT_EQ(model.config().architecture, "DeepseekV41ForCausalLM");
  // Four columns a layer: 101 103 107 109, then 113 127 131 137.
  EXPECT_THAT(model.config().engram->num_embeddings, ElementsAre(420, 508));
  const std::map<std::string, std::pair<DType, std::vector<std::int64_t>>> expected{
      {"embed.weight", {DType::F8E4M3, {508, 64}}}, {"embed.scale", {DType::F8E8M0, {508, 2}}},
      {"wkv.weight", {DType::F8E4M3, {216, 256}}},  {"wkv.scale", {DType::F8E8M0, {7, 8}}},
      {"q_weight", {DType::BF16, {2, 72}}},         {"k_weight", {DType::BF16, {2, 72}}},
  };
  for (const auto& [part, type] : expected) {
    const auto tensor = model.find("layers.3.engram." + part);
    ASSERT_TRUE(tensor) << part;
    EXPECT_EQ(tensor->info.dtype, type.first) << part;
    EXPECT_EQ(tensor->info.shape, type.second) << part;
  }
  EXPECT_EQ(model.tensor_names().size(), 12U);
  EXPECT_EQ(model.find("layers.3.engram.embed.weight")->file.filename(),
            "model-00003-of-00003.safetensors");
}

TEST(SyntheticModel, ReleasedSizesAreTheReleasedOnes) {
  const TempDir dir;
  SyntheticModelOptions options = released_model_options(ModelFamily::DeepSeekV41Flash);
  EXPECT_EQ(options.hidden_size, 5120);
  options.hidden_size = 32;  // the projections are not holes
  options.use_holes = true;
  make_synthetic_model(dir / "m", options);
  const auto model = ModelDir::open(dir / "m");
  EXPECT_THAT(model.config().engram->num_embeddings, ElementsAre(384006168, 384016682));
  const auto file = dir / "m" / "model-00002-of-00003.safetensors";
  EXPECT_GT(std::filesystem::file_size(file), 101'377'628'352U);
  struct stat status{};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
  const auto table = model.find("layers.1.engram.embed.weight").value();
  EXPECT_EQ(table.info.bytes, 384006168ULL * 256);
  EXPECT_EQ(table.bytes.back(), std::byte{0});
}

TEST(SyntheticModel, SameSeedGivesSameBytesOnAnyNumberOfThreads) {
  const auto two = make(small_options());
  set_parallel_threads(1);
  const auto one = make(small_options());
  set_parallel_threads(3);
  const auto three = make(small_options());
  EXPECT_EQ(one, two);
  EXPECT_EQ(one, three);

  SyntheticModelOptions other = small_options();
  other.seed = 2;
  for (const auto& [name, bytes] : make(other)) EXPECT_NE(bytes, one.at(name)) << name;
}

TEST(SyntheticModel, SingleFileHoldsTheSameTensorsAsShards) {
  SyntheticModelOptions options = small_options();
  options.use_shards = false;
  const TempDir dir;
  const auto summary = make_synthetic_model(dir / "m", options);
  EXPECT_THAT(summary.files, ElementsAre("model.safetensors", "config.json"));
  EXPECT_EQ(all_tensors(dir / "m"), make(small_options()));
}

TEST(SyntheticModel, RowsDependOnLayerAndRowAlone) {
  SyntheticModelOptions larger = small_options();
  larger.layers = {3, 7};
  larger.engram_vocab_size = 1009;
  const auto small = make(small_options());
  const auto large = make(larger);
  for (const char* name : {"layers.3.engram.embed.weight", "layers.3.engram.embed.scale"}) {
    EXPECT_EQ(large.at(name).substr(0, small.at(name).size()), small.at(name));
  }
}

TEST(SyntheticModel, RowsAreFiniteWithAFewSpecialOnes) {
  SyntheticModelOptions options = small_options();
  options.engram_vocab_size = 3001;
  const auto tensors = make(options);
  const std::string& codes = tensors.at("layers.1.engram.embed.weight");
  const std::string& scales = tensors.at("layers.1.engram.embed.scale");
  std::set<int> scale_values;
  for (const char c : scales) scale_values.insert(static_cast<unsigned char>(c));
  EXPECT_EQ(*scale_values.begin(), 118);
  EXPECT_EQ(*scale_values.rbegin(), 130);
  EXPECT_EQ(scale_values.size(), 13U);

  std::map<std::string, int> kinds;
  for (std::size_t row = 0; row < codes.size() / 64; ++row) {
    int least = 127;
    int most = 0;
    for (std::size_t i = 0; i < 64; ++i) {
      const int magnitude = byte_at(codes, row * 64 + i) & 0x7F;
      least = std::min(least, magnitude);
      most = std::max(most, magnitude);
    }
    ASSERT_LT(most, 0x7F) << "a NaN in row " << row;
    const bool is_usual = least >= 0x28 && most < 0x48;
    kinds[is_usual ? "usual" : most == 0 ? "zeros" : most < 8 ? "subnormals" : "whole"] += 1;
  }
  const auto rows = static_cast<double>(codes.size() / 64);
  for (const char* kind : {"zeros", "subnormals", "whole"}) {
    EXPECT_NEAR(kinds[kind] / rows, 1.0 / 64, 0.006) << kind;
  }
  EXPECT_THAT(codes, HasSubstr("\x80"));
}

/// Projects a sum over random rows, in double.
TEST(SyntheticModel, ProjectionKeepsItsOutputsAroundOne) {
  SyntheticModelOptions options = small_options();
  options.use_quantised_wkv = false;
  const auto tensors = make(options);
  const std::string& codes = tensors.at("layers.1.engram.embed.weight");
  const std::string& scales = tensors.at("layers.1.engram.embed.scale");
  const std::string& weight = tensors.at("layers.1.engram.wkv.weight");
  double sum_of_squares = 0;
  int count = 0;
  for (std::size_t token = 0; token < 100; ++token) {
    for (std::size_t output = 0; output < 216; output += 7) {
      double kv = 0;
      for (std::size_t input = 0; input < 256; ++input) {
        const std::size_t row = (token * 37 + input / 64 * 101) % 420;
        const BF16 element = dequantize_element(byte_at(codes, row * 64 + input % 64),
                                                byte_at(scales, row * 2 + input % 64 / 32));
        kv += double{to_float(element)} * double{bf16_at(weight, output * 256 + input)};
      }
      sum_of_squares += kv * kv;
      ++count;
    }
  }
  const double root_mean_square = std::sqrt(sum_of_squares / count);
  EXPECT_GT(root_mean_square, 0.3);
  EXPECT_LT(root_mean_square, 3.0);
}

TEST(SyntheticModel, PlainProjectionHoldsTheNumbersOfTheQuantisedOne) {
  SyntheticModelOptions options = small_options();
  const auto quantised = make(options);
  options.use_quantised_wkv = false;
  const auto plain = make(options);
  EXPECT_FALSE(plain.contains("layers.1.engram.wkv.scale"));
  const std::string& codes = quantised.at("layers.1.engram.wkv.weight");
  const std::string& scales = quantised.at("layers.1.engram.wkv.scale");
  for (std::size_t row = 0; row < 216; ++row) {
    for (std::size_t column = 0; column < 256; ++column) {
      const BF16 expected = dequantize_element(byte_at(codes, row * 256 + column),
                                               byte_at(scales, row / 32 * 8 + column / 32));
      ASSERT_EQ(bf16_at(plain.at("layers.1.engram.wkv.weight"), row * 256 + column),
                to_float(expected));
    }
  }
}

TEST(SyntheticModel, NormWeightsAreNearOne) {
  const auto tensors = make(small_options());
  for (const char* name : {"layers.1.engram.q_weight", "layers.1.engram.k_weight"}) {
    for (std::size_t i = 0; i < 144; ++i) EXPECT_NEAR(bf16_at(tensors.at(name), i), 1.0F, 0.13F);
  }
  EXPECT_NE(tensors.at("layers.1.engram.q_weight"), tensors.at("layers.1.engram.k_weight"));
}

TEST(SyntheticModel, GatesHaveTheRealShapeAndSpread) {
  SyntheticModelOptions options = demo_model_options(ModelFamily::HyV4);
  EXPECT_EQ(options.hidden_size, 2816);
  options.hidden_size = 96;
  options.num_attention_heads = 4;
  options.v_head_dim = 32;
  const TempDir dir;
  make_synthetic_model(dir / "m", options);
  const auto model = ModelDir::open(dir / "m");
  EXPECT_EQ(model.config().architecture, "HYV4ForCausalLM");
  EXPECT_EQ(model.config().gate->output_size(), 128);
  EXPECT_THAT(model.tensor_names(),
              UnorderedElementsAre("model.layers.0.self_attn.linear_gate.weight",
                                   "model.layers.1.self_attn.linear_gate.weight"));
  const auto gate = model.require(gate_tensor_names(1));
  EXPECT_EQ(gate.info.dtype, DType::BF16);
  EXPECT_THAT(gate.info.shape, ElementsAre(128, 96));
  double sum = 0;
  double sum_of_squares = 0;
  for (std::size_t i = 0; i < 128 * 96; ++i) {
    const double value = bf16_at(bytes_of(gate), i);
    sum += value;
    sum_of_squares += value * value;
  }
  EXPECT_NEAR(sum / (128 * 96), 0.0, 0.001);
  EXPECT_NEAR(std::sqrt(sum_of_squares / (128 * 96)), 0.02, 0.001);
}

TEST(SyntheticModel, HeadwiseGatesHaveARowPerHead) {
  SyntheticModelOptions options = demo_model_options(ModelFamily::HyV4Preview);
  options.hidden_size = 32;
  options.gating = GatingType::Headwise;
  const TempDir dir;
  make_synthetic_model(dir / "m", options);
  const auto gate = ModelDir::open(dir / "m").require(gate_tensor_names(0));
  EXPECT_THAT(gate.info.shape, ElementsAre(64, 32));
}

TEST(SyntheticModel, ReleasedGatesAreThoseOfAllLayersAndTheDraftLayer) {
  SyntheticModelOptions options = released_model_options(ModelFamily::HyV4);
  options.hidden_size = 2;
  options.num_attention_heads = 1;
  options.v_head_dim = 1;
  const TempDir dir;
  make_synthetic_model(dir / "m", options);
  const auto model = ModelDir::open(dir / "m");
  EXPECT_EQ(model.config().num_hidden_layers, 34);
  EXPECT_EQ(model.config().num_nextn_predict_layers, 1);
  EXPECT_EQ(model.tensor_names().size(), 35U);
  EXPECT_TRUE(model.find("model.layers.34.self_attn.linear_gate.weight"));
  EXPECT_EQ(released_model_options(ModelFamily::HyV4Preview).layers.size(), 78U);
}

TEST(SyntheticModel, ReportsProgressUpToTheEnd) {
  const TempDir dir;
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  const auto summary = make_synthetic_model(dir / "m", small_options(), [&](const auto& progress) {
    EXPECT_GE(progress.done_bytes, last);
    last = progress.done_bytes;
    total = progress.total_bytes;
  });
  EXPECT_EQ(last, total);
  EXPECT_EQ(summary.tensor_bytes, total);
}

constexpr std::string_view kTokenizer =
    R"({"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}})";

TEST(SyntheticModel, CopiesTheTokenizer) {
  const TempDir dir;
  SyntheticModelOptions options = small_options();
  options.tokenizer = dir.write("some.json", kTokenizer);
  make_synthetic_model(dir / "m", options);
  EXPECT_EQ(test::read_bytes(dir / "m" / "tokenizer.json"), kTokenizer);
}

TEST(SyntheticModel, RefusesAFileThatIsNoTokenizer) {
  const TempDir dir;
  SyntheticModelOptions options = small_options();
  options.tokenizer = dir.write("some.json", "{}");
  try {
    make_synthetic_model(dir / "m", options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::CorruptFile);
  }
  EXPECT_FALSE(std::filesystem::exists(dir / "m"));
}

void expect_refused(const SyntheticModelOptions& options, const char* message) {
  const TempDir dir;
  try {
    make_synthetic_model(dir / "m", options);
    FAIL() << "accepted: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SyntheticModel, RefusesOptionsThatMakeNoModel) {
  const auto with = [](auto change) {
    SyntheticModelOptions options = small_options();
    change(options);
    return options;
  };
  expect_refused(with([](auto& o) { o.layers = {}; }), "layers is empty");
  expect_refused(with([](auto& o) { o.layers = {1, 1}; }), "names a layer twice");
  expect_refused(with([](auto& o) { o.layers = {-1}; }), "a layer id is -1");
  expect_refused(with([](auto& o) { o.hidden_size = 0; }), "hidden_size is 0");
  expect_refused(with([](auto& o) { o.head_dim = 48; }), "head_dim is 48");
  expect_refused(with([](auto& o) { o.num_heads = 0; }), "num_heads is 0");
  expect_refused(with([](auto& o) { o.max_ngram_size = 1; }), "max_ngram_size is 1");
  expect_refused(with([](auto& o) { o.engram_vocab_size = 1; }), "engram_vocab_size is 1");
  expect_refused(with([](auto& o) { o.engram_vocab_size = (1 << 30) - 1; }),
                 "needed 1 to 2147483647");
  expect_refused(with([](auto& o) { o.pad_token_id = 1 << 20; }), "pad_token_id is 1048576");
}

TEST(SyntheticModel, RefusesADirectoryThatHoldsSomething) {
  const TempDir dir;
  dir.write("precious", "x");
  try {
    make_synthetic_model(dir.path(), small_options());
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("holds precious already"));
  }
  EXPECT_EQ(test::read_bytes(dir / "precious"), "x");
}

TEST(SyntheticModel, LeavesNothingBehindWhenItFails) {
  const TempDir dir;
  EXPECT_THROW(make_synthetic_model(dir / "m", small_options(),
                                    [](const auto& progress) {
                                      if (progress.done_bytes > 60'000) throw std::bad_alloc();
                                    }),
               std::bad_alloc);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SyntheticModel, RefusesADiskWithTooLittleRoom) {
  const TempDir dir;
  SyntheticModelOptions options = small_options();
  options.head_dim = 1 << 16;
  options.engram_vocab_size = 200'000'000;
  try {
    make_synthetic_model(dir / "m", options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::System);
    EXPECT_THAT(error.what(), HasSubstr("has room for"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(ModelFamily, NamesRoundTrip) {
  for (const char* name : {"deepseek-v4.1-flash", "hy-v4", "hy-v4-preview"}) {
    EXPECT_EQ(to_string(parse_model_family(name).value()), name);
  }
  EXPECT_FALSE(parse_model_family("llama"));
}

}  // namespace
}  // namespace penstock
