#pragma once

#include <optional>
#include <span>
#include <vector>

#include "penstock/topology/parallel_config.hpp"

namespace penstock {

/// Groups of data-parallel replicas on one node that keep one copy of an Engram table together.
struct EdpGroups {
  int size = 1;                          ///< Ranks of each group; 1: there are no groups.
  std::vector<std::vector<int>> groups;  ///< Ranks by ascending dp index; empty for size 1.

  friend bool operator==(const EdpGroups&, const EdpGroups&) = default;

  /// The index of the group that `rank` is in; nothing for size 1.
  std::optional<int> group_of(int rank) const;
};

/// The largest groups of consecutive data-parallel ranks that lie within a node: the greatest common
/// divisor of dp and the replicas of a node, if every node is a contiguous run of ranks that holds
/// the same number of whole replicas; else size 1. No group spans two external replicas.
///
/// Shapes: node_of_rank [world_size()]: equal numbers mean the same node.
/// Errors: InvalidArgument if validate() refuses `config`, or for another number of ranks.
EdpGroups edp_groups(std::span<const int> node_of_rank, const ParallelConfig& config);

}  // namespace penstock
