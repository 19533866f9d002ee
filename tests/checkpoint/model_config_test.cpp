#include "penstock/checkpoint/model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>

#include "penstock/core/error.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

/// The released sizes of DeepSeek V4.1 Flash.
json deepseek_config() {
  return json::parse(R"({
    "architectures": ["DeepseekV41ForConditionalGeneration"],
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]},
    "text_config": {
      "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
      "rms_norm_eps": 1e-20, "hc_mult": 4,
      "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
      "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 256,
      "engram_vocab_size": 16000000, "engram_pad_token_id": 2,
      "engram_compressed_vocab_size": 99092}})");
}

TEST(ModelConfig, ReadsReleasedDeepSeekSizes) {
  const ModelConfig config = parse_model_config(deepseek_config().dump(), "config.json");
  EXPECT_EQ(config.architecture, "DeepseekV41ForConditionalGeneration");
  EXPECT_EQ(config.vocab_size, 129280);
  EXPECT_EQ(config.hidden_size, 5120);
  EXPECT_EQ(config.num_hidden_layers, 40);
  EXPECT_EQ(config.hc_mult, 4);
  EXPECT_EQ(config.rms_norm_eps, 1e-20);
  EXPECT_EQ(config.weight_block_rows, 32);
  EXPECT_EQ(config.weight_block_columns, 32);
  EXPECT_FALSE(config.gate);
  ASSERT_TRUE(config.engram);
  EXPECT_THAT(config.engram->layer_ids, ElementsAre(1, 14));
  EXPECT_THAT(config.engram->num_embeddings, ElementsAre(384006168, 384016682));
  EXPECT_EQ(config.engram->num_columns(), 24);
  EXPECT_EQ(config.engram->lookback_depth(), 3);
  EXPECT_EQ(config.engram->head_dim, 256);
  EXPECT_EQ(config.engram->vocab_size, 16000000);
  EXPECT_EQ(config.engram->pad_token_id, 2);
  EXPECT_EQ(config.engram->compressed_vocab_size, 99092);
  EXPECT_EQ(config.engram->hash_layer_index(14), 1);
  EXPECT_EQ(config.engram->hash_layer_index(2), std::nullopt);
}

TEST(ModelConfig, ReadsKeysAtTheTopLevel) {
  json flat = deepseek_config()["text_config"];
  flat["architectures"] = {"A", "B"};
  const ModelConfig config = parse_model_config(flat.dump(), "config.json");
  EXPECT_EQ(config.architecture, "A");
  EXPECT_EQ(config.weight_block_rows, 0);
  ASSERT_TRUE(config.engram);
  EXPECT_EQ(config.engram->num_heads, 8);
}

TEST(ModelConfig, PrefersTextConfigOverTheTopLevel) {
  json config = deepseek_config();
  config["hidden_size"] = 7;
  EXPECT_EQ(parse_model_config(config.dump(), "c").hidden_size, 5120);
}

TEST(ModelConfig, HasDefaultsForEverythingOptional) {
  const ModelConfig config =
      parse_model_config(R"({"engram_layer_ids": null, "rms_norm_eps": null})", "c");
  EXPECT_EQ(config.architecture, "");
  EXPECT_EQ(config.vocab_size, 0);
  EXPECT_EQ(config.hc_mult, 1);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_FALSE(config.engram);
  EXPECT_FALSE(config.gate);
  EXPECT_FALSE(config.num_nextn_predict_layers);
  EXPECT_FALSE(parse_model_config(R"({"engram_layer_ids": []})", "c").engram);
}

TEST(ModelConfig, ReadsGates) {
  const auto gate_of = [](std::string_view text) { return parse_model_config(text, "c").gate; };
  const auto preview = gate_of(
      R"({"architectures": ["HYV4ForCausalLM"], "num_attention_heads": 64, "v_head_dim": 256,
          "gated_mla": true, "gating_type": "elementwise"})");
  ASSERT_TRUE(preview);
  EXPECT_EQ(preview->output_size(), 16384);

  const auto defaults = gate_of(R"({"architectures": ["HYV4ForCausalLM"]})");
  ASSERT_TRUE(defaults);
  EXPECT_EQ(defaults->gating, GatingType::Elementwise);
  EXPECT_EQ(defaults->output_size(), 8192);

  const auto headwise =
      gate_of(R"({"gating_type": "headwise", "num_attention_heads": 5, "v_head_dim": 3})");
  ASSERT_TRUE(headwise);
  EXPECT_EQ(headwise->output_size(), 5);

  EXPECT_FALSE(gate_of(R"({"architectures": ["HYV4ForCausalLM"], "gated_mla": false})"));
  EXPECT_FALSE(gate_of(R"({"num_attention_heads": 5, "v_head_dim": 3})"));
}

struct Change {
  const char* name;
  std::function<void(json&)> apply;  ///< To the object that holds the engram keys.
  const char* message;
};

void PrintTo(const Change& change, std::ostream* out) {
  *out << change.name;
}

class ModelConfigRefusal : public testing::TestWithParam<Change> {};

TEST_P(ModelConfigRefusal, NamesKeyValueAndNeed) {
  json config = deepseek_config();
  GetParam().apply(config["text_config"]);
  try {
    parse_model_config(config.dump(), "some/config.json");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::CorruptFile);
    EXPECT_THAT(error.what(), testing::StartsWith("some/config.json: "));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Keys, ModelConfigRefusal,
    testing::Values(
        Change{"no_layer_ids", [](json& c) { c.erase("engram_layer_ids"); },
               "key engram_layer_ids is missing"},
        Change{"no_rows", [](json& c) { c.erase("engram_num_embeddings"); },
               "key engram_num_embeddings is missing"},
        Change{"no_heads", [](json& c) { c["engram_n_heads"] = nullptr; },
               "key engram_n_heads is missing"},
        Change{"layer_twice", [](json& c) { c["engram_layer_ids"] = {1, 1}; },
               "engram_layer_ids is [1,1], needed: every layer once"},
        Change{"negative_layer", [](json& c) { c["engram_layer_ids"] = {1, -14}; },
               "engram_layer_ids[1] is -14, needed: a whole number from 0 to"},
        Change{
            "too_few_rows", [](json& c) { c["engram_num_embeddings"] = {5}; },
            "engram_num_embeddings is [5], needed: 2 numbers, one per layer of engram_layer_ids"},
        Change{"rows_past_int32", [](json& c) { c["engram_num_embeddings"] = {5, 2147483648}; },
               "engram_num_embeddings[1] is 2147483648"},
        Change{"ngram_1", [](json& c) { c["engram_max_ngram_size"] = 1; },
               "engram_max_ngram_size is 1, needed: a whole number from 2 to 64"},
        Change{"fraction", [](json& c) { c["engram_n_heads"] = 8.5; }, "engram_n_heads is 8.5"},
        Change{"text", [](json& c) { c["engram_n_heads"] = "8"; }, "engram_n_heads is \"8\""},
        Change{"true", [](json& c) { c["engram_n_heads"] = true; }, "engram_n_heads is true"},
        Change{"past_int64", [](json& c) { c["engram_n_heads"] = 18446744073709551615U; },
               "engram_n_heads is 18446744073709551615"},
        Change{"head_dim_48", [](json& c) { c["engram_head_dim"] = 48; },
               "engram_head_dim is 48, needed: a multiple of 32"},
        Change{"too_many_columns",
               [](json& c) {
                 c["engram_layer_ids"] = {1, 2, 3, 4, 5};
                 c["engram_num_embeddings"] = {1, 1, 1, 1, 1};
                 c["engram_max_ngram_size"] = 5;
                 c["engram_n_heads"] = 4096;
                 c["engram_vocab_size"] = 1;
               },
               "needed: at most 65536 columns in all layers together, of 16384 in each"},
        Change{"no_primes", [](json& c) { c["engram_vocab_size"] = 0; }, "engram_vocab_size is 0"},
        Change{"pad", [](json& c) { c["engram_pad_token_id"] = -1; }, "engram_pad_token_id is -1"},
        Change{"compressed", [](json& c) { c["engram_compressed_vocab_size"] = {}; },
               "key engram_compressed_vocab_size is missing"},
        Change{"hidden", [](json& c) { c["hidden_size"] = -5120; }, "hidden_size is -5120"},
        Change{"hc", [](json& c) { c["hc_mult"] = 65; }, "hc_mult is 65"},
        Change{"eps", [](json& c) { c["rms_norm_eps"] = 1; },
               "rms_norm_eps is 1, needed: a number"},
        Change{"block", [](json& c) { c["quantization_config"]["weight_block_size"] = {32}; },
               "weight_block_size is [32], needed: [rows, columns]"},
        Change{"architectures", [](json& c) { c["architectures"] = "X"; },
               "architectures is \"X\", needed: a list of names"},
        Change{"gating",
               [](json& c) {
                 c["gating_type"] = "diagonal\n";
                 c["gated_mla"] = true;
                 c["num_attention_heads"] = 1;
                 c["v_head_dim"] = 1;
               },
               "gating_type is \"diagonal\\n\", needed: \"elementwise\" or \"headwise\""},
        Change{"gate_without_heads", [](json& c) { c["gated_mla"] = true; },
               "key num_attention_heads is missing"},
        Change{"mtp", [](json& c) { c["num_nextn_predict_layers"] = -1; },
               "num_nextn_predict_layers is -1"}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(ModelConfig, RefusesEqualKeysAnywhere) {
  try {
    parse_model_config(R"({"text_config": {"hc_mult": 1, "hc_mult": 2}})", "c");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "c: key \"hc_mult\" stands twice in one object");
  }
}

TEST(ModelConfig, RefusesDeepNestingWithoutOverflowingTheStack) {
  const std::string deep(1'000'000, '[');
  EXPECT_THROW(parse_model_config(deep, "c"), Error);
}

TEST(ModelConfig, MissingFileIsNotFound) {
  const test::TempDir dir;
  try {
    load_model_config(dir / "config.json");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::NotFound);
    EXPECT_THAT(error.what(), HasSubstr((dir / "config.json").string()));
  }
}

}  // namespace
}  // namespace penstock
