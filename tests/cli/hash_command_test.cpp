#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

#include "cli/run_penstock.hpp"
#include "penstock/engram/token_map.hpp"
#include "support/engram_cases.hpp"

namespace penstock {
namespace {

using Json = nlohmann::json;
using test::CommandResult;
using test::run_penstock;
using test::ScratchDirectory;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing_support::golden;

class HashCommand : public testing::Test {
 protected:
  CommandResult hash(const std::string& batch, const std::string& options = "--json") {
    const std::string config = scratch_.write("config.json", config_.dump());
    return run_penstock("hash " + config + " --batch " + scratch_.write("batch.json", batch) + " " +
                        options);
  }

  ScratchDirectory scratch_;
  Json config_ = golden("layouts.json")[1]["config"];  // 2 layers, 4 columns, 64 compressed ids
};

TEST_F(HashCommand, GivesTheGoldenRowsOfCasesAsTheyStand) {
  const auto cases = golden("hash.json");
  for (std::size_t i = 0; i < cases.size(); i += 5) {
    config_ = cases[i]["config"];
    const CommandResult result = hash(cases[i].dump());
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, IsEmpty());
    EXPECT_EQ(Json::parse(result.out), Json({{"rows", cases[i]["rows"]}}));
  }
}

TEST_F(HashCommand, FillsInWhatABatchLeavesOut) {
  const std::string full =
      R"({"requests": [{"ids": [5], "position": 0, "lookback": [-1, -1]}, {"ids": [6], "position": 4,
      "lookback": [7, -1]}], "token_map": "identity", "dead_token": null})";
  const std::string brief =
      R"({"requests": [{"ids": [5]}, {"ids": [6], "position": 4, "lookback": [7]}]})";
  EXPECT_EQ(hash(full).exit_code, 0);
  EXPECT_EQ(hash(brief).out, hash(full).out);
}

TEST_F(HashCommand, TakesTheExample) {
  const Json layout = golden("layouts.json")[0]["config"];
  ASSERT_GE(layout.at("engram_compressed_vocab_size"), 99092);
  config_ = layout;
  const std::string config = scratch_.write("config.json", config_.dump());
  const CommandResult result = run_penstock(
      "hash " + config + " --batch " PENSTOCK_TEST_DATA "/../examples/batch.json --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["rows"].size(), 6U);
}

TEST_F(HashCommand, AcceptsNoTokens) {
  EXPECT_EQ(Json::parse(hash(R"({"requests": []})").out), Json::parse(R"({"rows": []})"));
  EXPECT_EQ(Json::parse(hash(R"({"requests": [{"ids": []}]})").out),
            Json::parse(R"({"rows": []})"));
}

TEST_F(HashCommand, FindsConfigUnderTextConfig) {
  const std::string batch = R"({"requests": [{"ids": [1, 2, 3]}]})";
  const std::string flat = hash(batch).out;
  config_ = {{"text_config", config_}};
  EXPECT_EQ(hash(batch).out, flat);
}

TEST_F(HashCommand, ReadsASavedTokenMapBesideTheBatch) {
  TokenMap({3, 1, 2, 0}).save(scratch_.path() / "some.map");
  const auto rows = [&](const std::string& map) {
    return hash(R"({"requests": [{"ids": [0, 1, 2, 3]}], "token_map": )" + map + "}");
  };
  const CommandResult by_path = rows("\"some.map\"");
  EXPECT_EQ(by_path.exit_code, 0) << by_path.err;
  EXPECT_EQ(by_path.out, rows("[3, 1, 2, 0]").out);
  EXPECT_NE(by_path.out, rows("\"identity\"").out);
}

TEST_F(HashCommand, NamesRequestPositionAndLayerInText) {
  const CommandResult text = hash(R"({"requests": [{"ids": [5, 6], "position": 7}]})", "");
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, StartsWith("request 0 position 7 layer 44: "));
  EXPECT_THAT(text.out, HasSubstr("\nrequest 0 position 8 layer 57: "));
}

TEST_F(HashCommand, RefusesBadBatches) {
  const std::vector<std::pair<std::string, const char*>> cases{
      {"", "found no JSON at byte 1"},
      {"[1", "found no JSON"},
      {"[]", "the batch is no object"},
      {"{}", "no array \"requests\""},
      {R"({"requests": [], "requests": []})", "the key \"requests\" twice"},
      {R"({"requests": [], "token": 1})",
       "the key \"token\" in the batch, needed: one of requests"},
      {R"({"requests": [{"ids": [1], "pos": 1}]})", "the key \"pos\" in requests[0]"},
      {R"({"requests": [{"position": 1}]})", "no \"ids\" in requests[0]"},
      {R"({"requests": [{"ids": [1, 2.5]}]})", "requests[0].ids[1] is 2.5"},
      {R"({"requests": [{"ids": [4294967296]}]})", "requests[0].ids[0] is 4294967296"},
      {R"({"requests": [{"ids": [18446744073709551615]}]})", "ids[0] is 18446744073709551615"},
      {R"({"requests": [{"ids": [true]}]})", "ids[0] is true"},
      {R"({"requests": [{"ids": 1}]})", "requests[0].ids is no array"},
      {R"({"requests": [{"ids": [1], "position": -1}]})", "position is -1, needed: 0 to 2^62"},
      {R"({"requests": [{"ids": [1], "lookback": [1, 2, 3]}]})",
       "has 3 entries, needed: at most 2"},
      {R"({"requests": [{"ids": [64]}]})", "token_ids[0] is 64, needed: 0 <= id < 64"},
      {R"({"requests": [], "token_map": 3})", "token_map is of another kind"},
      {R"({"requests": [], "token_map": [0, -1]})", "ids[1] is -1"},
      {R"({"requests": [], "token_map": [0, 64]})", "65 compressed ids, needed: at most"},
      {R"({"requests": [], "token_map": "none.map"})", "none.map"},
      {R"({"requests": [], "dead_token": -1})", "dead_token_id is -1"},
      {R"({"requests": [], "dead_token": "x"})", "dead_token is \"x\""},
      {std::string(100, '[') + std::string(100, ']'), "nested deeper than 64"}};
  for (const auto& [batch, message] : cases) {
    const CommandResult result = hash(batch);
    EXPECT_EQ(result.exit_code, 3) << batch;
    EXPECT_THAT(result.out, IsEmpty()) << batch;
    EXPECT_THAT(result.err, StartsWith("penstock: error: ")) << batch;
    EXPECT_THAT(result.err, HasSubstr(message)) << batch;
  }
}

TEST_F(HashCommand, RefusesAModelWithoutEngramAndFilesThatAreNotThere) {
  const std::string batch = R"({"requests": []})";
  config_ = Json::object();
  EXPECT_THAT(hash(batch).err, HasSubstr("found no engram_* keys"));
  EXPECT_EQ(hash(batch).exit_code, 3);
  EXPECT_EQ(run_penstock("hash /nowhere/config.json --batch /nowhere/batch.json").exit_code, 3);
  EXPECT_EQ(run_penstock("hash").exit_code, 2);
}

}  // namespace
}  // namespace penstock
