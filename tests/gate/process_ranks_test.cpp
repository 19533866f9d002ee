// Gates over processes: rows of the weight and results go through sockets, and nothing else changes.

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>

#include "penstock/comm/launcher.hpp"

namespace penstock {
namespace {

class GateOverProcesses : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(GateOverProcesses, GivesWhatOneRankAloneGives) {
  const auto& [scenario, ranks] = GetParam();
  std::string said;
  LaunchOptions options;
  options.on_stderr = [&](int rank, std::string_view line) {
    said += "rank " + std::to_string(rank) + ": " + std::string(line) + "\n";
  };
  const LaunchResult result = launch_processes({PENSTOCK_GATE_RANK, scenario}, ranks, options);
  EXPECT_FALSE(result.first_failure.has_value()) << to_string(*result.first_failure);
  EXPECT_EQ(said, "");
}

INSTANTIATE_TEST_SUITE_P(Scenarios, GateOverProcesses,
                         testing::Combine(testing::Values("row-shards", "identical-rows",
                                                          "column-shards", "shared-stream"),
                                          testing::Values(2, 3)),
                         [](const auto& parameter) {
                           std::string name = std::get<0>(parameter.param);
                           name[name.find('-')] = '_';
                           return name + "_ranks" + std::to_string(std::get<1>(parameter.param));
                         });

}  // namespace
}  // namespace penstock
