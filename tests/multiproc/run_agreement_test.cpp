// Ranks of one `penstock run` that were told different things: all of them must say so, with every
// value, before anything is opened.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "run_model.hpp"

namespace penstock {
namespace {

using test::TimedResult;
using testing::HasSubstr;

/// What one rank is started with, beside what all have.
struct RankStart {
  std::vector<std::string> words = {};
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::string tokens = {};  ///< Another token file.
};

/// Starts each rank as a launcher would that gives every rank its own command line.
std::vector<TimedResult> start_ranks(const test::RunModel& model,
                                     const std::vector<RankStart>& starts) {
  static int jobs = 0;
  const std::string address =
      fmt::format("unix:@penstock-test-agreement-{}-{}", ::getpid(), jobs++);
  std::vector<TimedResult> results(starts.size());
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < starts.size(); ++rank) {
    test::TimedCommand command = model.command(starts[rank].words);
    command.environment.insert(command.environment.end(),
                               {{"PENSTOCK_RANK", std::to_string(rank)},
                                {"PENSTOCK_SIZE", std::to_string(starts.size())},
                                {"PENSTOCK_ADDRESS", address}});
    if (!starts[rank].tokens.empty()) {
      std::ranges::replace(command.argv, model.tokens(), starts[rank].tokens);
    }
    for (const auto& variable : starts[rank].environment) command.environment.push_back(variable);
    threads.emplace_back([&results, rank, command] { results[rank] = test::run_timed(command); });
  }
  threads.clear();
  return results;
}

void expect_all_refuse(const std::vector<TimedResult>& results, const std::string& piece) {
  for (const TimedResult& result : results) {
    EXPECT_EQ(result.exit_code, 3) << result.text();
    EXPECT_TRUE(result.out.empty());
    ASSERT_FALSE(result.err.empty());
    EXPECT_THAT(result.err.back().text, testing::StartsWith("penstock: error: run: "));
    EXPECT_THAT(result.err.back().text, HasSubstr(piece));
  }
}

constexpr const char* kSwitch = "PENSTOCK_GATE_PCP_SHARD";

std::vector<std::string> gate_model_words() {
  return {"--like",  "hy-v4", "--layers",     "0", "--hidden", "64",
          "--heads", "2",     "--v-head-dim", "32"};
}

class RunAgreement : public testing::Test {
 protected:
  static const test::RunModel& engram_model() {
    static const test::RunModel model;
    return model;
  }
  static const test::RunModel& gate_model() {
    static const test::RunModel model(gate_model_words());
    return model;
  }
};

TEST_F(RunAgreement, RefusesSwitchesThatDiffer) {
  const RankStart on{{"--pcp", "2"}, {{kSwitch, "1"}}};
  const RankStart unset{{"--pcp", "2"}};
  const auto results = start_ranks(gate_model(), {on, unset});
  expect_all_refuse(
      results, "PENSTOCK_GATE_PCP_SHARD is on on rank 0 and unset on rank 1; needed: the same");
}

TEST_F(RunAgreement, TakesTwoWordsOfOneMeaning) {
  const auto results = start_ranks(gate_model(), {{{"--pcp", "2", "--verify"}, {{kSwitch, "yes"}}},
                                                  {{"--pcp", "2", "--verify"}, {{kSwitch, "ON"}}}});
  for (const TimedResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.text();
}

TEST_F(RunAgreement, RefusesAMisspeltSwitchOfOneRankOnAll) {
  const auto results =
      start_ranks(gate_model(), {{{"--pcp", "2"}}, {{"--pcp", "2"}, {{kSwitch, "ture"}}}});
  expect_all_refuse(results, "rank 1: PENSTOCK_GATE_PCP_SHARD: found \"ture\"");
}

TEST_F(RunAgreement, RefusesStrategiesThatDiffer) {
  const auto results = start_ranks(gate_model(), {{{"--pcp", "3", "--strategy", "n_shard"}},
                                                  {{"--pcp", "3", "--strategy", "n_shard"}},
                                                  {{"--pcp", "3", "--strategy", "k_shard"}}});
  expect_all_refuse(results, "--strategy is k_shard on rank 2 and n_shard on ranks 0, 1");
}

TEST_F(RunAgreement, RefusesSizesAndPlacementsThatDifferAtOnce) {
  const auto results =
      start_ranks(engram_model(), {{{"--tp", "2"}}, {{"--dp", "2", "--placement", "host"}}});
  expect_all_refuse(results, "dp 2, pp 1, pcp 1, tp 1\" on rank 1");
  expect_all_refuse(results, "--placement is auto on rank 0 and host on rank 1");
}

TEST_F(RunAgreement, RefusesBackingsThatDiffer) {
  const auto results =
      start_ranks(engram_model(), {{{"--dp", "2", "--backing", "memfd"}}, {{"--dp", "2"}}});
  expect_all_refuse(results, "--backing is auto on rank 1 and memfd on rank 0");
}

TEST_F(RunAgreement, RefusesTokensThatDiffer) {
  RankStart other{{"--dp", "2"}};
  other.tokens = engram_model().write("[[1,2,3]]");
  const auto results = start_ranks(engram_model(), {{{"--dp", "2"}}, other});
  expect_all_refuse(results, "the token file is");
}

TEST_F(RunAgreement, AnOptionOfOneRankThatCannotBeReadEndsTheOthersAtTheDeadline) {
  const RankStart good{{"--dp", "2", "--deadline", "0.5"}};
  const RankStart bad{{"--dp", "2", "--placement", "nowhere"}};
  const auto results = start_ranks(engram_model(), {good, bad});
  EXPECT_EQ(results[1].exit_code, 2);
  EXPECT_EQ(results[0].exit_code, 4);
  EXPECT_THAT(results[0].err.back().text, HasSubstr("rank 1"));
}

TEST(RunGateSwitch, TurnsShardingOffUnlessTheCommandLineNamesAStrategy) {
  const test::RunModel model(gate_model_words());
  const auto strategy_of = [&](const std::vector<std::string>& words, const char* value) {
    test::TimedCommand command = model.command(words);
    command.environment.emplace_back(kSwitch, value);
    const TimedResult result = test::run_timed(command);
    EXPECT_EQ(result.exit_code, 0) << result.text();
    std::string all;
    for (const auto& line : result.out) all += line.text;
    return all;
  };
  EXPECT_THAT(strategy_of({"--pcp", "2"}, "0"), HasSubstr(", replicated, "));
  EXPECT_THAT(strategy_of({"--pcp", "2", "--strategy", "n_shard"}, "0"), HasSubstr(", n_shard, "));
}

}  // namespace
}  // namespace penstock
