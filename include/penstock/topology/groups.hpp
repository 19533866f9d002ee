#pragma once

#include <string_view>
#include <vector>

#include "penstock/topology/parallel_config.hpp"

namespace penstock {

/// The dimensions along which ranks form groups.
enum class Dimension { Dp, Pp, Pcp, Tp };

/// "dp", "pp", "pcp" or "tp".
std::string_view to_string(Dimension dimension);

/// The ranks that differ from `rank` in `dimension` only, `rank` included, in ascending order.
///
/// Errors: InvalidArgument for a rank outside [0, world_size()).
std::vector<int> group_of(const ParallelConfig& config, int rank, Dimension dimension);

/// Every group of `dimension`, by ascending first rank. Each rank is in exactly one.
std::vector<std::vector<int>> all_groups(const ParallelConfig& config, Dimension dimension);

/// The groups of one rank.
struct RankGroups {
  std::vector<int> dp;
  std::vector<int> pp;
  std::vector<int> pcp;
  std::vector<int> tp;
};

/// The groups of `rank` in every dimension. Errors: as group_of.
RankGroups groups_of(const ParallelConfig& config, int rank);

}  // namespace penstock
