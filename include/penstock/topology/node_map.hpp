#pragma once

#include <string>
#include <vector>

namespace penstock {

/// Which ranks share host memory.
struct NodeMap {
  std::vector<int> node_of_rank;  ///< Nodes count from 0 in the order of their first ranks.
  /// Empty if every two ranks of a node reach each other and no others; else the first contradiction.
  std::string contradiction = {};

  int num_nodes() const;

  /// Ranks of the node that `rank` is on, ascending.
  std::vector<int> ranks_on_node_of(int rank) const;
};

/// Groups ranks into nodes. A rank joins the first node all of whose ranks it reaches, and which all
/// reach it; where reachability contradicts itself (one-way, or A-B and B-C but not A-C), nodes come
/// out smaller rather than wrong, and `contradiction` tells.
///
/// Shapes: can_reach [size][size]: can_reach[a][b] means that a can open b's memory. The diagonal is
///         ignored.
/// Errors: InvalidArgument if it is not square.
NodeMap group_into_nodes(const std::vector<std::vector<bool>>& can_reach);

}  // namespace penstock
