#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "penstock/core/device.hpp"
#include "run_penstock.hpp"

namespace penstock {
namespace {

using nlohmann::json;
using test::run_penstock;
using test::ScratchDirectory;

/// A model of a few megabytes and some tokens, made once.
class RunCommand : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new ScratchDirectory;
    model_ = (scratch_->path() / "model").string();
    const auto made = run_penstock("make-model '" + model_ +
                                   "' --engram-vocab-size 499 --hidden 64 --vocab-size 500 "
                                   "--compressed-vocab-size 500");
    ASSERT_EQ(made.exit_code, 0) << made.err;
    std::string tokens = "[[";
    for (int i = 0; i < 90; ++i) tokens += std::to_string(i * 37 % 500) + ",";
    tokens += "1],[5],[7,7,7,7]]";
    tokens_ = scratch_->write("tokens.json", tokens);
  }
  static void TearDownTestSuite() {
    delete scratch_;
    scratch_ = nullptr;
  }

  static test::CommandResult run(const std::string& words) {
    return run_penstock("run '" + model_ + "' --tokens '" + tokens_ + "' --token-map identity " +
                        words);
  }

  static inline ScratchDirectory* scratch_ = nullptr;
  static inline std::string model_;
  static inline std::string tokens_;
};

void expect_error(const test::CommandResult& result, int exit_code, const std::string& piece) {
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  EXPECT_EQ(result.out, "");
  const std::string last =
      result.err.substr(result.err.rfind("penstock: error: ", result.err.size()));
  EXPECT_NE(last.find(piece), std::string::npos) << result.err;
}

TEST_F(RunCommand, ReportsWhatEveryLayerDidAndThatItWasRight) {
  const auto result = run("--verify --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  ASSERT_EQ(report["ranks"].size(), 1U);
  ASSERT_EQ(report["ranks"][0]["layers"].size(), 2U);
  for (const json& layer : report["ranks"][0]["layers"]) {
    EXPECT_TRUE(layer["verify"]["ok"].get<bool>());
    EXPECT_EQ(layer["verify"]["rows_checked"], 96 * 24);
    EXPECT_EQ(layer["placement"], "host_shared");
  }
}

TEST_F(RunCommand, TakesTheBackingThatIsNamedOrSaysWhyNot) {
  const auto result = run("--dp 2 --processes --backing memfd --verify --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  for (const json& rank : report["ranks"]) {
    for (const json& layer : rank["layers"]) {
      EXPECT_EQ(layer["backing"].get<std::string>().find("memfd"), 0U);
      EXPECT_EQ(layer["backing_choice"], "asked for");
    }
  }
  expect_error(run("--dp 2 --backing cumem"), 4, "backing cumem needs a CUDA device");
  expect_error(run("--placement host --backing memfd"), 3, "needed: host_shared");
  expect_error(run("--backing tmpfs"), 2, "tmpfs");
}

TEST_F(RunCommand, GivesEachProcessItsRankAndOneOfThemPrints) {
  const auto result = run("--dp 2 --tp 2 --processes --verify --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  ASSERT_EQ(report["ranks"].size(), 4U);
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(report["ranks"][static_cast<std::size_t>(rank)]["rank"], rank);
}

TEST_F(RunCommand, SaysThatRowShardsAreUsedWhereColumnsDoNotSuffice) {
  const auto result = run("--tp 4 --dp 4 --placement host --dp-shard --verify --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json report = json::parse(result.out);
  ASSERT_EQ(report["ranks"].size(), 16U);
  for (const json& rank : report["ranks"]) {
    EXPECT_EQ(rank["layers"][0]["shard"], "rows");
  }
}

// A stage whose first layer is an Engram layer must inject like any other, and stages after the first
// must have token ids: every layer, on whichever stage, injects every active token.
TEST_F(RunCommand, InjectsEveryTokenWhereverTheStagesAreCut) {
  for (const std::string cuts : {"1", "2", "8", "14", "1,14", "1,2,14"}) {
    const auto stages = std::to_string(2 + std::ranges::count(cuts, ','));
    const auto result = run("--pp " + stages + " --pp-cuts " + cuts + " --verify --json");
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json report = json::parse(result.out);
    std::set<int> layers;
    for (const json& rank : report["ranks"]) {
      for (const json& layer : rank["layers"]) {
        layers.insert(layer["layer"].get<int>());
        EXPECT_EQ(layer["tokens"], 96) << cuts;
        EXPECT_GT(layer["verify"]["tokens_checked"], 0) << cuts;
      }
    }
    EXPECT_EQ(layers, (std::set<int>{1, 14})) << cuts;
  }
}

TEST_F(RunCommand, KeepsOneTableForEightProcessesThatShareIt) {
  const auto shared = run("--dp 8 --processes --placement host_shared --json");
  ASSERT_EQ(shared.exit_code, 0) << shared.err;
  const json report = json::parse(shared.out);
  for (const json& rank : report["ranks"]) {
    EXPECT_EQ(rank["layers"][0]["shared_bytes"], rank["layers"][0]["resident_bytes"]);
  }
}

TEST_F(RunCommand, RefusesBadInputWithOneLine) {
  expect_error(run_penstock("run /nonexistent --tokens '" + tokens_ + "'"), 3, "/nonexistent");
  expect_error(run_penstock("run '" + model_ + "' --tokens '" + tokens_ + "'"), 3,
               "tokenizer.json");
  expect_error(run("--rows random:x"), 3, "random:SEED");
  expect_error(run("--pp 2 --pp-cuts 1,2"), 3, "--pp-cuts");
  expect_error(run("--pp 3 --pp-cuts 14,1"), 3, "past the one before");
  expect_error(run("--pp 3 --pp-cuts 1,1"), 3, "past the one before");
  expect_error(run("--pp 2 --pp-cuts 0"), 3, "past 0");
  expect_error(run("--layers 1,7"), 3, "layer 7, the model has Engram at 1, 14");
  expect_error(run("--deadline nan"), 3, "--deadline is nan");
  expect_error(run("--deadline 0"), 3, "--deadline is 0");
  expect_error(run("--tp 257"), 3, "at most 256 are started here");
  expect_error(run("--dp 300 --processes"), 3, "at most 256 are started here");
  expect_error(run("--tp 2147483647 --dp 3"), 3, "make more than");
  expect_error(run("--out '" + tokens_ + "'"), 4, "needed: a directory to write to");
  expect_error(run("--dp 2 --out /proc/nowhere"), 4, "--out /proc/nowhere");
  expect_error(run("--engine nccl"), 3, "needed: --device cuda");
  if (cuda_device_count() == 0) expect_error(run("--device cuda"), 4, "cuda");
  const std::string bad = scratch_->write("bad.json", "[500]");
  expect_error(run_penstock("run '" + model_ + "' --token-map identity --tokens '" + bad + "'"), 3,
               "500");
}

TEST_F(RunCommand, RefusesOptionsOfTablesWhereThereIsNone) {
  const std::string gates = (scratch_->path() / "gates").string();
  const auto made =
      run_penstock("make-model '" + gates + "' --like hy-v4-preview --hidden 64 --heads 2");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string command = "run '" + gates + "' --tokens '" + tokens_ + "' ";
  EXPECT_EQ(run_penstock(command + "--strategy replicated").exit_code, 0);
  for (const std::string option :
       {"--placement host", "--placement host_shared", "--backing memfd", "--allow-fallback",
        "--dp-shard", "--sp", "--rows", "--stand-in"}) {
    const std::string value = option == "--rows" ? " random:7" : option == "--stand-in" ? " 3" : "";
    expect_error(run_penstock(command + option + value), 3,
                 "run: " + option + " is for tables, " + gates + " has gates alone");
  }
  expect_error(run_penstock(command + "--dp-shard --placement file --dp 2"), 3,
               "--placement file, --dp-shard are for tables");
}

TEST_F(RunCommand, RefusesAStrategyWhereThereIsNoGate) {
  for (const std::string strategy : {"auto", "k_shard"}) {
    expect_error(run("--strategy " + strategy), 3,
                 "run: --strategy " + strategy + " is for gates, " + model_ + " has tables alone");
  }
}

TEST_F(RunCommand, RefusesUnknownWordsAsUsage) {
  expect_error(run("--placement nowhere"), 2, "nowhere");
  expect_error(run("--tp 0"), 2, "tp");
}

}  // namespace
}  // namespace penstock
