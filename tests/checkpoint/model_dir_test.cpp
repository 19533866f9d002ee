#include "penstock/checkpoint/model_dir.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "penstock/core/error.hpp"
#include "support/safetensors_oracle.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using test::PlainTensor;
using test::TempDir;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string text_of(const TensorRef& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

std::string file_with(const std::string& name, const std::string& bytes) {
  return test::write_plain_safetensors(
      {{name, PlainTensor{"U8", {static_cast<std::int64_t>(bytes.size())}, bytes}}});
}

/// Runs `call` and gives the error it must throw.
template <typename Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::Internal, "no error"};
}

TEST(ModelDir, ReadsASingleFile) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model.safetensors", file_with("layers.1.engram.q_weight", "qq"));
  const auto model = ModelDir::open(dir.path());
  EXPECT_THAT(model.tensor_names(), ElementsAre("layers.1.engram.q_weight"));
  EXPECT_THAT(model.declared_files().at("model.safetensors"),
              ElementsAre("layers.1.engram.q_weight"));
  const auto tensor = model.require(engram_tensor_names(1, "q_weight"));
  EXPECT_EQ(text_of(tensor), "qq");
  EXPECT_EQ(tensor.file, dir / "model.safetensors");
  EXPECT_FALSE(model.find("layers.1.engram.k_weight"));
}

TEST(ModelDir, ReadsShardsThroughTheIndex) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model.safetensors.index.json",
            R"({"metadata": {"total_size": 4, "x": [1, {"y": null}]},
                "weight_map": {"b": "two.safetensors", "a": "parts/one.safetensors"}})");
  dir.write("parts/one.safetensors", file_with("a", "11"));
  dir.write("two.safetensors", file_with("b", "22"));
  const auto model = ModelDir::open(dir.path());
  EXPECT_THAT(model.tensor_names(), ElementsAre("a", "b"));
  EXPECT_THAT(model.declared_files(), ElementsAre(Pair("parts/one.safetensors", ElementsAre("a")),
                                                  Pair("two.safetensors", ElementsAre("b"))));
  EXPECT_EQ(text_of(model.find("a").value()), "11");
  EXPECT_EQ(text_of(model.find("b").value()), "22");
  EXPECT_FALSE(model.find("c"));
}

TEST(ModelDir, FollowsSymbolicLinks) {
  const TempDir blobs;
  const TempDir dir;
  std::filesystem::create_symlink(blobs.write("1", "{}"), dir / "config.json");
  std::filesystem::create_symlink(blobs.write("2", file_with("a", "linked")),
                                  dir / "model.safetensors");
  EXPECT_EQ(text_of(ModelDir::open(dir.path()).find("a").value()), "linked");
}

TEST(ModelDir, OpensWithoutWeights) {
  const TempDir dir;
  dir.write("config.json", R"({"hidden_size": 64})");
  const auto model = ModelDir::open(dir.path());
  EXPECT_EQ(model.config().hidden_size, 64);
  EXPECT_TRUE(model.tensor_names().empty());
  EXPECT_FALSE(model.find("a"));
  const Error error = error_of([&] { model.require(gate_tensor_names(3)); });
  EXPECT_EQ(error.code(), ErrorCode::NotFound);
  EXPECT_THAT(error.what(), HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(error.what(), HasSubstr("model.layers.3.self_attn.linear_gate.weight"));
}

TEST(ModelDir, MissingShardIsAnErrorOnlyWhenAskedFor) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model.safetensors.index.json", R"({"weight_map": {"a": "one", "b": "gone"}})");
  dir.write("one", file_with("a", "1"));
  const auto model = ModelDir::open(dir.path());
  EXPECT_EQ(text_of(model.find("a").value()), "1");
  const Error error = error_of([&] { (void)model.find("b"); });
  EXPECT_EQ(error.code(), ErrorCode::NotFound);
  EXPECT_THAT(error.what(), HasSubstr((dir / "gone").string()));
  EXPECT_THAT(error.what(), HasSubstr("tensor \"b\""));
}

TEST(ModelDir, IndexThatLiesIsCorrupt) {
  const TempDir dir;
  dir.write("config.json", "{}");
  dir.write("model.safetensors.index.json", R"({"weight_map": {"a": "one", "b": "one"}})");
  dir.write("one", file_with("a", "1"));
  const Error error = error_of([&] { (void)ModelDir::open(dir.path()).find("b"); });
  EXPECT_EQ(error.code(), ErrorCode::CorruptFile);
  EXPECT_THAT(error.what(), HasSubstr("one: no tensor \"b\", which"));
}

TEST(ModelDir, NeedsADirectoryWithConfig) {
  const TempDir dir;
  EXPECT_EQ(error_of([&] { ModelDir::open(dir / "nowhere"); }).code(), ErrorCode::NotFound);
  EXPECT_EQ(error_of([&] { ModelDir::open(dir.path()); }).code(), ErrorCode::NotFound);
}

TEST(ModelDir, ServesManyThreadsAndCopies) {
  const TempDir dir;
  dir.write("config.json", "{}");
  std::string map;
  for (int i = 0; i < 8; ++i) {
    const std::string name = "t" + std::to_string(i);
    dir.write(name + ".safetensors", file_with(name, name));
    map += (i == 0 ? "\"" : ",\"") + name + "\":\"" + name + ".safetensors\"";
  }
  dir.write("model.safetensors.index.json", "{\"weight_map\": {" + map + "}}");
  const auto model = ModelDir::open(dir.path());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([copy = model] {
      for (int i = 0; i < 8; ++i) {
        const std::string name = "t" + std::to_string(i);
        EXPECT_EQ(text_of(copy.find(name).value()), name);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(TensorNames, HaveCheckpointAndMappedSpellings) {
  EXPECT_THAT(engram_tensor_names(14, "embed.scale"),
              ElementsAre("layers.14.engram.embed.scale", "model.layers.14.engram.embed.scale",
                          "layers.14.engram.embed_tokens.weight_scale_inv",
                          "model.layers.14.engram.embed_tokens.weight_scale_inv"));
  EXPECT_THAT(engram_tensor_names(1, "embed.weight"),
              testing::Contains("model.layers.1.engram.embed_tokens.weight"));
  EXPECT_THAT(
      engram_tensor_names(1, "wkv.scale"),
      testing::IsSupersetOf({"layers.1.engram.wkv.scale", "model.layers.1.engram.wkv.weight_scale",
                             "model.layers.1.engram.wkv.weight_scale_inv"}));
  EXPECT_THROW(engram_tensor_names(1, "bias"), Error);
}

}  // namespace
}  // namespace penstock
