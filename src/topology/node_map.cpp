#include "penstock/topology/node_map.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using Reach = std::vector<std::vector<bool>>;

bool reach_each_other(const Reach& can_reach, std::size_t a, std::size_t b) {
  return can_reach[a][b] && can_reach[b][a];
}

/// The first pair that the nodes do not explain.
std::string find_contradiction(const Reach& can_reach, const std::vector<int>& node_of_rank) {
  for (std::size_t a = 0; a < can_reach.size(); ++a) {
    for (std::size_t b = a + 1; b < can_reach.size(); ++b) {
      if (can_reach[a][b] != can_reach[b][a]) {
        const auto [from, to] = can_reach[a][b] ? std::pair(a, b) : std::pair(b, a);
        return fmt::format("rank {} reaches the memory of rank {}, but not the other way", from,
                           to);
      }
      if (can_reach[a][b] && node_of_rank[a] != node_of_rank[b]) {
        return fmt::format(
            "ranks {} and {} reach each other's memory, but not that of the same ranks", a, b);
      }
    }
  }
  return {};
}

}  // namespace

int NodeMap::num_nodes() const {
  if (node_of_rank.empty()) return 0;
  return 1 + *std::ranges::max_element(node_of_rank);
}

std::vector<int> NodeMap::ranks_on_node_of(int rank) const {
  expects(rank >= 0 && static_cast<std::size_t>(rank) < node_of_rank.size(),
          fmt::format("ranks_on_node_of: rank {}, must be in [0, {})", rank, node_of_rank.size()));
  const int node = node_of_rank[static_cast<std::size_t>(rank)];
  std::vector<int> ranks;
  for (std::size_t r = 0; r < node_of_rank.size(); ++r) {
    if (node_of_rank[r] == node) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

NodeMap group_into_nodes(const Reach& can_reach) {
  for (const auto& row : can_reach) {
    expects(row.size() == can_reach.size(),
            fmt::format("group_into_nodes: a row has {} ranks, there are {}", row.size(),
                        can_reach.size()));
  }
  std::vector<std::vector<std::size_t>> nodes;
  NodeMap map;
  for (std::size_t rank = 0; rank < can_reach.size(); ++rank) {
    const auto fits = [&](const std::vector<std::size_t>& node) {
      return std::ranges::all_of(
          node, [&](std::size_t member) { return reach_each_other(can_reach, rank, member); });
    };
    auto node = std::ranges::find_if(nodes, fits);
    if (node == nodes.end()) node = nodes.insert(nodes.end(), std::vector<std::size_t>{});
    node->push_back(rank);
    map.node_of_rank.push_back(static_cast<int>(node - nodes.begin()));
  }
  map.contradiction = find_contradiction(can_reach, map.node_of_rank);
  return map;
}

}  // namespace penstock
