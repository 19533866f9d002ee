#include "penstock/topology/groups.hpp"

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

/// Ranks of one group, and how far apart they are.
struct Step {
  int count = 1;
  int stride = 1;
};

Step step_of(const ParallelConfig& config, Dimension dimension) {
  switch (dimension) {
    case Dimension::Tp: return {config.tp, 1};
    case Dimension::Pcp: return {config.pcp, config.tp};
    case Dimension::Pp: return {config.pp, config.pcp * config.tp};
    case Dimension::Dp: return {config.dp, config.replica_size()};
  }
  throw Error(ErrorCode::Internal, "group_of: not a Dimension");
}

int index_in(const RankPlace& place, Dimension dimension) {
  switch (dimension) {
    case Dimension::Tp: return place.tp;
    case Dimension::Pcp: return place.pcp;
    case Dimension::Pp: return place.pp;
    case Dimension::Dp: return place.dp;
  }
  throw Error(ErrorCode::Internal, "group_of: not a Dimension");
}

}  // namespace

std::string_view to_string(Dimension dimension) {
  switch (dimension) {
    case Dimension::Tp: return "tp";
    case Dimension::Pcp: return "pcp";
    case Dimension::Pp: return "pp";
    case Dimension::Dp: return "dp";
  }
  throw Error(ErrorCode::Internal, "to_string: not a Dimension");
}

std::vector<int> group_of(const ParallelConfig& config, int rank, Dimension dimension) {
  const int index = index_in(place_of(config, rank), dimension);
  const Step step = step_of(config, dimension);
  std::vector<int> ranks;
  for (int i = 0; i < step.count; ++i) ranks.push_back(rank + (i - index) * step.stride);
  return ranks;
}

std::vector<std::vector<int>> all_groups(const ParallelConfig& config, Dimension dimension) {
  validate(config);
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < config.world_size(); ++rank) {
    if (index_in(place_of(config, rank), dimension) == 0) {
      groups.push_back(group_of(config, rank, dimension));
    }
  }
  return groups;
}

RankGroups groups_of(const ParallelConfig& config, int rank) {
  return {.dp = group_of(config, rank, Dimension::Dp),
          .pp = group_of(config, rank, Dimension::Pp),
          .pcp = group_of(config, rank, Dimension::Pcp),
          .tp = group_of(config, rank, Dimension::Tp)};
}

}  // namespace penstock
