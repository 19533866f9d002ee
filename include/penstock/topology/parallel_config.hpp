#pragma once

#include <string>

namespace penstock {

/// How the ranks of a deployment are arranged. Ranks count through the grid
/// external_dp x dp x pp x pcp x tp, tp fastest.
struct ParallelConfig {
  int external_dp = 1;  ///< Replicas that are started by themselves; no group spans them.
  int dp = 1;           ///< Data-parallel replicas.
  int pp = 1;           ///< Pipeline stages.
  int pcp = 1;          ///< Prefill context parallel ranks.
  int tp = 1;           ///< Tensor parallel ranks.

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;

  /// Ranks of one data-parallel replica.
  int replica_size() const { return pp * pcp * tp; }
  int world_size() const { return external_dp * dp * replica_size(); }
};

/// Errors: InvalidArgument, naming the size, if one is below 1 or their product is above 2^20.
void validate(const ParallelConfig& config);

/// "external_dp 1, dp 4, pp 1, pcp 1, tp 2"
std::string to_string(const ParallelConfig& config);

/// A rank's place in the grid.
struct RankPlace {
  int external_dp = 0;
  int dp = 0;
  int pp = 0;
  int pcp = 0;
  int tp = 0;

  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// Range:  rank in [0, world_size()).
/// Errors: InvalidArgument outside of it.
RankPlace place_of(const ParallelConfig& config, int rank);

/// The inverse of place_of.
///
/// Errors: InvalidArgument for a place outside the grid.
int rank_at(const ParallelConfig& config, const RankPlace& place);

}  // namespace penstock
