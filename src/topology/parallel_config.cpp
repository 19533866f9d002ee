#include "penstock/topology/parallel_config.hpp"

#include <fmt/core.h>

#include <cstdint>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

// Far above any machine, and far below where index arithmetic on ranks could overflow.
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;

}  // namespace

void validate(const ParallelConfig& config) {
  std::int64_t ranks = 1;
  const auto check = [&](const char* name, int size) {
    expects(size >= 1, fmt::format("parallel sizes: {} is {}, must be at least 1", name, size));
    ranks *= size;
    expects(ranks <= kMaxRanks, fmt::format("parallel sizes: {} make more than {} ranks",
                                            to_string(config), kMaxRanks));
  };
  check("external_dp", config.external_dp);
  check("dp", config.dp);
  check("pp", config.pp);
  check("pcp", config.pcp);
  check("tp", config.tp);
}

std::string to_string(const ParallelConfig& config) {
  return fmt::format("external_dp {}, dp {}, pp {}, pcp {}, tp {}", config.external_dp, config.dp,
                     config.pp, config.pcp, config.tp);
}

RankPlace place_of(const ParallelConfig& config, int rank) {
  validate(config);
  expects(rank >= 0 && rank < config.world_size(),
          fmt::format("place_of: rank {}, must be in [0, {})", rank, config.world_size()));
  RankPlace place;
  const auto take = [&](int size) {
    const int index = rank % size;
    rank /= size;
    return index;
  };
  place.tp = take(config.tp);
  place.pcp = take(config.pcp);
  place.pp = take(config.pp);
  place.dp = take(config.dp);
  place.external_dp = rank;
  return place;
}

int rank_at(const ParallelConfig& config, const RankPlace& place) {
  validate(config);
  int rank = 0;
  const auto add = [&](const char* name, int index, int size) {
    expects(index >= 0 && index < size,
            fmt::format("rank_at: {} index {}, must be in [0, {})", name, index, size));
    rank = rank * size + index;
  };
  add("external_dp", place.external_dp, config.external_dp);
  add("dp", place.dp, config.dp);
  add("pp", place.pp, config.pp);
  add("pcp", place.pcp, config.pcp);
  add("tp", place.tp, config.tp);
  return rank;
}

}  // namespace penstock
