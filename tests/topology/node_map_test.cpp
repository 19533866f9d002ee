#include "penstock/topology/node_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

/// Rows of '1' and '.'.
std::vector<std::vector<bool>> matrix(const std::vector<std::string>& rows) {
  std::vector<std::vector<bool>> result;
  for (const auto& row : rows) {
    auto& line = result.emplace_back();
    for (const char c : row) line.push_back(c == '1');
  }
  return result;
}

TEST(GroupIntoNodes, GroupsRanksThatReachEachOther) {
  const NodeMap map = group_into_nodes(matrix({"1.1.", ".1.1", "1.1.", ".1.1"}));
  EXPECT_EQ(map.node_of_rank, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(map.num_nodes(), 2);
  EXPECT_EQ(map.ranks_on_node_of(3), (std::vector<int>{1, 3}));
  EXPECT_EQ(map.contradiction, "");
}

TEST(GroupIntoNodes, IgnoresWhetherARankReachesItself) {
  EXPECT_EQ(group_into_nodes(matrix({".1", "1."})).node_of_rank, (std::vector<int>{0, 0}));
}

TEST(GroupIntoNodes, SeparatesRanksThatReachOneWayOnly) {
  const NodeMap map = group_into_nodes(matrix({"111", ".11", "111"}));
  EXPECT_EQ(map.node_of_rank, (std::vector<int>{0, 1, 0}));
  EXPECT_THAT(map.contradiction, testing::HasSubstr("rank 0 reaches the memory of rank 1"));
}

TEST(GroupIntoNodes, MakesSmallerNodesOfAChain) {
  const NodeMap map = group_into_nodes(matrix({"11..", "111.", ".111", "..11"}));
  EXPECT_EQ(map.node_of_rank, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_THAT(map.contradiction, testing::HasSubstr("ranks 1 and 2"));
}

TEST(GroupIntoNodes, TakesNoRanksAndRefusesAMatrixThatIsNotSquare) {
  EXPECT_EQ(group_into_nodes({}).num_nodes(), 0);
  EXPECT_THROW(group_into_nodes(matrix({"11", "1"})), Error);
  EXPECT_THROW(group_into_nodes(matrix({"1"})).ranks_on_node_of(1), Error);
}

}  // namespace
}  // namespace penstock
