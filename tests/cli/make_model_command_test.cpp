#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

#include "cli/run_penstock.hpp"

namespace penstock::test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

void expect_error(const CommandResult& result, int exit_code, const std::string& message) {
  EXPECT_EQ(result.exit_code, exit_code);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(last_line(result.err), StartsWith("penstock: error: "));
  EXPECT_THAT(last_line(result.err), HasSubstr(message));
}

constexpr const char* kSmall =
    " --engram-vocab-size 101 --hidden 64 --heads 2 --max-ngram 3 --head-dim 64 --layers 1,3";

TEST(MakeModelCommand, WritesAModelThatInspectFindsConsistent) {
  const ScratchDirectory dir;
  const std::string model = (dir.path() / "m").string();
  const auto made = run_penstock("make-model " + model + kSmall + " --json");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const json answer = json::parse(made.out);
  EXPECT_EQ(answer["like"], "deepseek-v4.1-flash");
  EXPECT_THAT(answer["layers"], ElementsAre(1, 3));
  EXPECT_THAT(made.err, HasSubstr("make-model: 100 %"));

  const auto inspected = run_penstock("inspect " + model + " --json");
  EXPECT_EQ(inspected.exit_code, 0) << inspected.out;
  const json report = json::parse(inspected.out);
  EXPECT_EQ(report["ok"], true);
  EXPECT_EQ(report["engram"]["columns"], 4);
  EXPECT_EQ(report["engram"]["row_bytes"], 66);
  ASSERT_EQ(report["engram"]["layers"].size(), 2U);
  const json& layer = report["engram"]["layers"][0];
  EXPECT_EQ(layer["layer"], 1);
  EXPECT_EQ(layer["rows"], 420);
  EXPECT_EQ(layer["table_bytes"], 420 * 66);
  EXPECT_EQ(layer["tensors"]["wkv.weight"]["shape"], (json{320, 256}));
  EXPECT_EQ(report["gates"], nullptr);
}

TEST(MakeModelCommand, MakesTheSameFilesFromTheSameSeed) {
  const ScratchDirectory dir;
  const auto table_of = [&](const std::string& name, const std::string& seed) {
    const std::string words = "make-model " + (dir.path() / name).string() + kSmall;
    EXPECT_EQ(run_penstock(words + " --single-file --seed " + seed).exit_code, 0);
    return dir.read(name + "/model.safetensors");
  };
  const std::string first = table_of("a", "7");
  EXPECT_GT(first.size(), 100'000U);
  EXPECT_EQ(first, table_of("b", "7"));
  EXPECT_NE(first, table_of("c", "8"));
}

TEST(MakeModelCommand, MakesGates) {
  const ScratchDirectory dir;
  const std::string model = (dir.path() / "m").string();
  const auto made =
      run_penstock("make-model " + model + " --like hy-v4 --hidden 64 --heads 3 --v-head-dim 16");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto inspected = run_penstock("inspect " + model + " --json");
  EXPECT_EQ(inspected.exit_code, 0) << inspected.out;
  const json report = json::parse(inspected.out);
  EXPECT_EQ(report["gates"]["output_size"], 48);
  ASSERT_EQ(report["gates"]["layers"].size(), 2U);
  EXPECT_EQ(report["gates"]["layers"][1]["tensor"]["name"],
            "model.layers.1.self_attn.linear_gate.weight");
  EXPECT_EQ(report["engram"], nullptr);
}

TEST(MakeModelCommand, SparseTablesOfReleasedSizeTakeNoRoom) {
  const ScratchDirectory dir;
  const std::string model = (dir.path() / "m").string();
  ASSERT_EQ(run_penstock("make-model " + model + " --full --sparse --hidden 32").exit_code, 0);
  const auto inspected = run_penstock("inspect " + model);
  EXPECT_EQ(inspected.exit_code, 0) << inspected.out;
  EXPECT_THAT(inspected.out, HasSubstr("384006168 rows, 94.42 GiB, primes 16000057 to 16000463"));
}

TEST(MakeModelCommand, TakesTheCompressedSizeFromTheTokenizer) {
  const ScratchDirectory dir;
  // a and A share a compressed id, so do c and C; five placeholders follow.
  const std::string tokenizer =
      dir.write("t.json", R"({"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE",
                    "vocab": {"a": 0, "A": 1, "b": 2, "c": 3, "C": 4}}})");
  const std::string words = std::string(kSmall) + " --vocab-size 10 --tokenizer " + tokenizer + " ";
  const std::string good = (dir.path() / "good").string();
  ASSERT_EQ(run_penstock("make-model " + good + words).exit_code, 0);
  const auto inspected = run_penstock("inspect --json " + good);
  EXPECT_EQ(inspected.exit_code, 0) << inspected.out;
  const json report = json::parse(inspected.out);
  EXPECT_EQ(report["engram"]["compressed_vocab_size"], 8);
  EXPECT_EQ(report["tokenizer"], (json{{"tokens", 10}, {"compressed", 8}}));

  const std::string bad = (dir.path() / "bad").string();
  ASSERT_EQ(run_penstock("make-model " + bad + words + "--compressed-vocab-size 9").exit_code, 0);
  const auto refused = run_penstock("inspect --json " + bad);
  EXPECT_EQ(refused.exit_code, 3);
  const json found = json::parse(refused.out)["inconsistencies"];
  ASSERT_EQ(found.size(), 1U) << found.dump(2);
  EXPECT_EQ(found[0]["id"], "compressed-size");
  EXPECT_THAT(found[0]["message"].get<std::string>(),
              HasSubstr("engram_compressed_vocab_size is 9"));

  dir.write("bad/tokenizer.json", "{}");
  const auto unreadable = run_penstock("inspect --json " + bad);
  EXPECT_EQ(unreadable.exit_code, 3);
  EXPECT_EQ(json::parse(unreadable.out)["inconsistencies"][0]["id"], "tokenizer");
}

TEST(MakeModelCommand, RefusesWhatItCannotDo) {
  const ScratchDirectory dir;
  const std::string model = (dir.path() / "m").string();
  expect_error(run_penstock("make-model"), 2, "DIR");
  expect_error(run_penstock("make-model " + model + " --like llama"), 2, "--like");
  expect_error(run_penstock("make-model " + model + " --hidden x"), 2, "--hidden");
  expect_error(run_penstock("make-model " + model + " --like hy-v4 --max-ngram 3"), 2,
               "only for a model with Engram layers");
  expect_error(run_penstock("make-model " + model + " --gating headwise"), 2,
               "only for a model with gates");
  expect_error(run_penstock("make-model " + model + " --head-dim 33"), 3, "head_dim is 33");
  expect_error(run_penstock("make-model " + model + " --layers 1,1"), 3, "twice");
  expect_error(run_penstock("make-model " + model + " --tokenizer /nowhere"), 3, "/nowhere");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  dir.write("x", "");
  expect_error(run_penstock("make-model " + dir.path().string()), 3, "holds x already");
}

}  // namespace
}  // namespace penstock::test
