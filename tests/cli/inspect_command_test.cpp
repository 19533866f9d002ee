#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <utility>

#include "cli/run_penstock.hpp"

namespace penstock::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kTables = "model-00002-of-00003.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// A consistent model in `model`, to be spoiled.
class SpoiledModel {
 public:
  explicit SpoiledModel(const std::string& words = "") {
    const auto made =
        run_penstock("make-model " + model().string() + " " +
                     (words.empty() ? "--engram-vocab-size 101 --hidden 64 --heads 2 --max-ngram 3 "
                                      "--head-dim 64 --layers 1,3 --compressed-vocab-size 99"
                                    : words));
    EXPECT_EQ(made.exit_code, 0) << made.err;
  }

  std::filesystem::path model() const { return dir_.path() / "m"; }

  void edit_json(const std::string& file, const std::function<void(json&)>& change) const {
    json document = json::parse(dir_.read("m/" + file));
    change(document);
    dir_.write("m/" + file, document.dump());
  }

  void edit_text_config(const std::function<void(json&)>& change) const {
    edit_json("config.json", [&](json& config) { change(config["text_config"]); });
  }

  std::string read(const std::string& file) const { return dir_.read("m/" + file); }
  void write(const std::string& file, const std::string& text) const {
    dir_.write("m/" + file, text);
  }

  /// Inspects, and expects exactly these findings: pairs of an id and a part of its message.
  void expect_findings(const std::vector<std::pair<std::string, std::string>>& expected) const {
    const auto result = run_penstock("inspect " + model().string() + " --json");
    EXPECT_EQ(result.exit_code, 3) << result.err;
    const json report = json::parse(result.out);
    EXPECT_EQ(report["ok"], false);
    const json& found = report["inconsistencies"];
    ASSERT_EQ(found.size(), expected.size()) << found.dump(2);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(found[i]["id"], expected[i].first);
      EXPECT_THAT(found[i]["message"].get<std::string>(), HasSubstr(expected[i].second));
    }
  }

 private:
  ScratchDirectory dir_;
};

TEST(InspectCommand, ComparesRowCountsWithPrimes) {
  const SpoiledModel model;
  model.edit_text_config([](json& config) { config["engram_num_embeddings"] = {420, 515}; });
  model.expect_findings(
      {{"row-count", "engram_num_embeddings of layer 3 is 515"},
       {"shape", "layers.3.engram.embed.weight is F8_E4M3 [508, 64], needed F8_E4M3 [515, 64]"},
       {"shape", "layers.3.engram.embed.scale is F8_E8M0 [508, 2], needed F8_E8M0 [515, 2]"}});
}

TEST(InspectCommand, ComparesShapesWithConfig) {
  const SpoiledModel model;
  model.edit_text_config([](json& config) {
    config["hc_mult"] = 3;
    config["engram_layer_ids"] = {1};
    config["engram_num_embeddings"] = {420};
  });
  model.expect_findings({{"shape", "wkv.weight is F8_E4M3 [320, 256], needed F8_E4M3 [256, 256]"},
                         {"shape", "wkv.scale is F8_E8M0 [10, 8], needed F8_E8M0 [8, 8]"},
                         {"shape", "q_weight is BF16 [4, 64], needed BF16 [3, 64]"},
                         {"shape", "k_weight is BF16 [4, 64], needed BF16 [3, 64]"}});
}

TEST(InspectCommand, FindsMissingAndTruncatedFiles) {
  const SpoiledModel model;
  std::filesystem::remove(model.model() / "model-00003-of-00003.safetensors");
  const std::string whole = model.read(kTables);
  model.write(kTables, whole.substr(0, whole.size() - 1));
  model.expect_findings({{"file", "model-00002-of-00003.safetensors: tensor"},
                         {"file", "model-00003-of-00003.safetensors: "}});
}

TEST(InspectCommand, FindsATruncatedSingleFileOnce) {
  const SpoiledModel model("--single-file --engram-vocab-size 11 --hidden 32");
  const std::string whole = model.read("model.safetensors");
  model.write("model.safetensors", whole.substr(0, whole.size() / 2));
  model.expect_findings({{"file", "bytes of data follow the header"}});
}

TEST(InspectCommand, FindsAnIndexThatLies) {
  const SpoiledModel model;
  model.edit_json(kIndex, [](json& index) {
    json& map = index["weight_map"];
    map["layers.1.engram.q_weight"] = kTables;
    map.erase("layers.1.engram.k_weight");
  });
  model.expect_findings(
      {{"index", "model-00001-of-00003.safetensors: holds tensor layers.1.engram.q_weight"},
       {"index", "model-00001-of-00003.safetensors: holds tensor layers.1.engram.k_weight"},
       {"index", "model-00002-of-00003.safetensors: does not hold tensor layers.1.engram.q_weight"},
       {"missing-tensor", "no tensor layers.1.engram.k_weight"}});
}

TEST(InspectCommand, FindsAPaddingTokenOutsideTheVocabulary) {
  const SpoiledModel model;
  model.edit_text_config([](json& config) { config["engram_pad_token_id"] = 200'000; });
  model.expect_findings({{"config", "engram_pad_token_id is 200000, vocab_size 129280"}});
}

TEST(InspectCommand, NeedsABlockSizeForQuantisedProjections) {
  const SpoiledModel model;
  model.edit_json("config.json", [](json& config) { config.erase("quantization_config"); });
  model.expect_findings(
      {{"quantisation", "wkv.weight of layer 1 is F8_E4M3, needed quantization_config"},
       {"quantisation", "wkv.weight of layer 3 is F8_E4M3, needed quantization_config"}});
}

TEST(InspectCommand, FindsLayersWithoutGate) {
  const SpoiledModel model("--like hy-v4 --hidden 32 --heads 2 --v-head-dim 8 --layers 0,2");
  model.edit_json("config.json", [](json& config) { config["num_attention_heads"] = 3; });
  model.expect_findings(
      {{"shape", "model.layers.0.self_attn.linear_gate.weight is BF16 [16, 32], needed BF16 [24"},
       {"shape", "model.layers.2.self_attn.linear_gate.weight"},
       {"missing-tensor", "linear_gate.weight for layers 1"}});
}

TEST(InspectCommand, PrintsFindingsAsText) {
  const SpoiledModel model;
  model.edit_text_config([](json& config) { config["engram_pad_token_id"] = 200'000; });
  const auto result = run_penstock("inspect " + model.model().string());
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.out, HasSubstr("\ninconsistent  config: engram_pad_token_id is 200000"));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("\nconsistent")));
}

TEST(InspectCommand, PrintsGatesAsText) {
  const std::string words = "--like hy-v4 --hidden 32 --heads 2 --v-head-dim 8 --layers 0,1";
  for (const auto& [gating, text] : {std::pair{"elementwise", "elementwise, 16 outputs, 2.0 KiB"},
                                     std::pair{"headwise", "headwise, 2 outputs, 256 bytes"}}) {
    const SpoiledModel model(words + " --gating " + gating);  // not spoiled
    const auto result = run_penstock("inspect " + model.model().string());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(std::string("gates         2 layers, ") + text));
    EXPECT_THAT(result.out, HasSubstr("\nlayer 1\n  linear_gate.weight"));
    EXPECT_THAT(result.out, HasSubstr("\nconsistent\n"));
  }
}

TEST(InspectCommand, ModelWithNothingForUsIsFine) {
  const ScratchDirectory dir;
  dir.write("config.json", R"({"architectures": ["LlamaForCausalLM"]})");
  const auto result = run_penstock("inspect " + dir.path().string());
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("nothing to serve"));
}

TEST(InspectCommand, NeedsAReadableConfig) {
  const ScratchDirectory dir;
  for (const char* text : {"", "{", "{\"hidden_size\": -1}"}) {
    if (*text != '\0') dir.write("config.json", text);
    const auto result = run_penstock("inspect " + dir.path().string() + " --json");
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, ::testing::StartsWith("penstock: error: " + dir.path().string()));
  }
}

}  // namespace
}  // namespace penstock::test
