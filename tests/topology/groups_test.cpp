#include "penstock/topology/groups.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

constexpr ParallelConfig kGrid{.external_dp = 2, .dp = 3, .pp = 2, .pcp = 2, .tp = 4};

/// From the definition: the ranks whose places are equal but for one index.
std::vector<int> naive_group(const ParallelConfig& config, int rank, Dimension dimension) {
  const auto without = [&](int r) {
    RankPlace place = place_of(config, r);
    if (dimension == Dimension::Dp) place.dp = 0;
    if (dimension == Dimension::Pp) place.pp = 0;
    if (dimension == Dimension::Pcp) place.pcp = 0;
    if (dimension == Dimension::Tp) place.tp = 0;
    return place;
  };
  std::vector<int> ranks;
  for (int r = 0; r < config.world_size(); ++r) {
    if (without(r) == without(rank)) ranks.push_back(r);
  }
  return ranks;
}

TEST(GroupOf, HoldsTheRanksThatDifferInOneDimension) {
  for (const auto dimension : {Dimension::Dp, Dimension::Pp, Dimension::Pcp, Dimension::Tp}) {
    for (int rank = 0; rank < kGrid.world_size(); ++rank) {
      EXPECT_EQ(group_of(kGrid, rank, dimension), naive_group(kGrid, rank, dimension))
          << to_string(dimension) << " of rank " << rank;
    }
  }
}

TEST(AllGroups, HaveEveryRankOnceByAscendingFirstRank) {
  for (const auto dimension : {Dimension::Dp, Dimension::Pp, Dimension::Pcp, Dimension::Tp}) {
    std::vector<int> seen(static_cast<std::size_t>(kGrid.world_size()), 0);
    int last_first = -1;
    for (const auto& ranks : all_groups(kGrid, dimension)) {
      EXPECT_GT(ranks[0], last_first);
      last_first = ranks[0];
      for (const int r : ranks) ++seen[static_cast<std::size_t>(r)];
    }
    EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

TEST(GroupsOf, GivesTheFourGroupsOfARank) {
  const RankGroups groups = groups_of({.dp = 2, .pp = 2, .tp = 2}, 5);
  EXPECT_EQ(groups.tp, (std::vector<int>{4, 5}));
  EXPECT_EQ(groups.pcp, (std::vector<int>{5}));
  EXPECT_EQ(groups.pp, (std::vector<int>{5, 7}));
  EXPECT_EQ(groups.dp, (std::vector<int>{1, 5}));
}

TEST(GroupOf, RefusesARankOutsideTheGrid) {
  EXPECT_THROW(group_of(kGrid, kGrid.world_size(), Dimension::Tp), Error);
  EXPECT_THROW(group_of({.tp = 0}, 0, Dimension::Tp), Error);
}

}  // namespace
}  // namespace penstock
