#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "penstock/comm/launcher.hpp"

namespace penstock {
namespace {

/// What the ranks print; those from `first_alone` on are in namespaces of their own.
std::set<std::string> lines_of_ranks(int size, int first_alone) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("penstock_nodes_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::set<std::string> lines;
  LaunchOptions options;
  // A path, since names do not cross network namespaces.
  options.address = "unix:" + (folder / "meet").string();
  options.on_stderr = [&](int, std::string_view line) { lines.emplace(line); };
  const auto result = launch_processes(
      {PENSTOCK_RANK_PROGRAM, "nodes", std::to_string(first_alone)}, size, options);
  EXPECT_FALSE(result.first_failure) << to_string(*result.first_failure);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
  return lines;
}

TEST(FindNodesOfProcesses, PutsTheProcessesOfAMachineOnOneNode) {
  EXPECT_THAT(lines_of_ranks(3, 3), testing::ElementsAre("nodes 0 0 0"));
}

TEST(FindNodesOfProcesses, SeparatesNamespacesThatCannotShareMemory) {
  const auto lines = lines_of_ranks(4, 2);
  if (lines.contains("no right to make a namespace")) {
    GTEST_SKIP() << "no right to make a network namespace (needs CAP_SYS_ADMIN)";
  }
  EXPECT_THAT(lines, testing::ElementsAre("nodes 0 0 1 2"));
}

}  // namespace
}  // namespace penstock
