#include "penstock/topology/edp.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using Groups = std::vector<std::vector<int>>;

TEST(EdpGroups, AgreeWithTheGoldenCases) {
  std::ifstream file(PENSTOCK_TEST_DATA "/golden/edp_groups.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 20U);
  for (const auto& item : cases) {
    const auto nodes = item["node_of_rank"].get<std::vector<int>>();
    const auto result = edp_groups(nodes, {.external_dp = item["external_dp"],
                                           .dp = item["dp"],
                                           .pp = item["pp"],
                                           .pcp = item["pcp"],
                                           .tp = item["tp"]});
    EXPECT_EQ(result.size, item["size"].get<int>()) << item.dump();
    EXPECT_EQ(result.groups, item["groups"].get<Groups>()) << item.dump();
  }
}

/// `counts[i]` ranks on node i, in order.
std::vector<int> nodes_of(const std::vector<int>& counts) {
  std::vector<int> nodes;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    nodes.insert(nodes.end(), static_cast<std::size_t>(counts[i]), static_cast<int>(i));
  }
  return nodes;
}

TEST(EdpGroups, HaveTheSizesOfTheWorkedTable) {
  struct Case {
    std::vector<int> counts;
    ParallelConfig config;
    int size;
  };
  const std::vector<Case> cases{
      {{4}, {.dp = 4}, 4},
      {{4}, {.dp = 2, .tp = 2}, 2},
      {{4}, {.tp = 4}, 1},
      {{8}, {.dp = 2, .pp = 2, .tp = 2}, 2},
      {{8, 8}, {.dp = 8, .tp = 2}, 4},
      {{8, 8}, {.dp = 2, .tp = 8}, 1},
      {{4, 4, 4, 4, 4, 4, 4, 4}, {.dp = 8, .tp = 4}, 1},
      {{6, 6}, {.external_dp = 3, .dp = 4}, 2},
      {{3, 4}, {.dp = 7}, 1},
      {{8, 8, 8}, {.dp = 8, .tp = 3}, 1},
      {{3, 5}, {.dp = 4, .tp = 2}, 1},
  };
  for (const auto& item : cases) {
    EXPECT_EQ(edp_groups(nodes_of(item.counts), item.config).size, item.size)
        << to_string(item.config);
  }
}

/// From the definition, by trying every size: groups of s consecutive dp ranks, all within a node.
int largest_size_within_nodes(const std::vector<int>& nodes, const ParallelConfig& config) {
  int best = 1;
  for (int size = 2; size <= config.dp; ++size) {
    if (config.dp % size != 0) continue;
    bool fits = true;
    for (int rank = 0; rank < config.world_size(); ++rank) {
      RankPlace place = place_of(config, rank);
      place.dp -= place.dp % size;
      const auto first = static_cast<std::size_t>(rank_at(config, place));
      fits = fits && nodes[first] == nodes[static_cast<std::size_t>(rank)];
    }
    if (fits) best = size;
  }
  return best;
}

TEST(EdpGroups, NeverCrossANodeAndAreAsLargeAsEqualNodesAllow) {
  std::mt19937 random(3);
  const auto pick = [&](int limit) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  for (int round = 0; round < 500; ++round) {
    const ParallelConfig config{
        .external_dp = pick(2), .dp = pick(8), .pp = pick(2), .pcp = pick(2), .tp = pick(3)};
    const int world = config.world_size();
    const int per_node = pick(world);
    std::vector<int> nodes;
    for (int r = 0; r < world; ++r) nodes.push_back(r / per_node);
    const EdpGroups result = edp_groups(nodes, config);
    EXPECT_EQ(config.dp % result.size, 0);
    for (const auto& ranks : result.groups) {
      EXPECT_EQ(static_cast<int>(ranks.size()), result.size);
      for (const int r : ranks) {
        EXPECT_EQ(nodes[static_cast<std::size_t>(r)], nodes[static_cast<std::size_t>(ranks[0])]);
        EXPECT_EQ(place_of(config, r).tp, place_of(config, ranks[0]).tp);
      }
    }
    if (world % per_node == 0 && per_node % config.replica_size() == 0) {
      EXPECT_EQ(result.size, largest_size_within_nodes(nodes, config)) << to_string(config);
    }
  }
}

TEST(EdpGroups, DoNotDependOnTheNumbersOfNodes) {
  const ParallelConfig config{.dp = 4, .tp = 2};
  EXPECT_EQ(edp_groups(std::vector<int>{7, 7, 7, 7, -3, -3, -3, -3}, config),
            edp_groups(std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}, config));
}

TEST(EdpGroups, SeeANodeThatComesTwice) {
  // Blocks of one node each, but node 0 has two of them.
  EXPECT_EQ(edp_groups(std::vector<int>{0, 0, 1, 1, 0, 0, 1, 1}, {.dp = 8}).size, 1);
}

TEST(EdpGroups, TellTheGroupOfARank) {
  const EdpGroups result = edp_groups(nodes_of({8, 8}), {.dp = 8, .tp = 2});
  EXPECT_EQ(result.group_of(10), 1);
  EXPECT_EQ(result.group_of(1), 2);
  EXPECT_EQ(edp_groups(nodes_of({4}), {.tp = 4}).group_of(0), std::nullopt);
}

TEST(EdpGroups, RefuseAnotherNumberOfRanks) {
  try {
    edp_groups(nodes_of({3}), {.dp = 4});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("has 3 ranks"));
  }
  EXPECT_THROW(edp_groups({}, {.dp = 0}), Error);
}

}  // namespace
}  // namespace penstock
