#include "penstock/topology/edp.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "penstock/core/error.hpp"
#include "penstock/topology/groups.hpp"

namespace penstock {
namespace {

/// Whether every node is exactly one block of `block` consecutive ranks.
bool are_nodes_blocks(std::span<const int> node_of_rank, std::size_t block, std::size_t num_nodes) {
  // As many blocks as nodes, each of one node: then no node can have ranks in two blocks.
  if (block * num_nodes != node_of_rank.size()) return false;
  std::set<int> seen;
  for (std::size_t start = 0; start < node_of_rank.size(); start += block) {
    const auto ranks = node_of_rank.subspan(start, block);
    if (!std::ranges::all_of(ranks, [&](int node) { return node == ranks[0]; })) {
      return false;
    }
    if (!seen.insert(ranks[0]).second) return false;
  }
  return true;
}

int group_size(std::span<const int> node_of_rank, const ParallelConfig& config) {
  const std::set<int> nodes(node_of_rank.begin(), node_of_rank.end());
  const int num_nodes = static_cast<int>(nodes.size());
  const int replica = config.replica_size();
  if (config.world_size() % (num_nodes * replica) != 0) return 1;
  const int replicas_per_node = config.world_size() / (num_nodes * replica);
  const int size = std::gcd(config.dp, replicas_per_node);
  if (size == 1 || num_nodes == 1) return size;
  const auto block =
      static_cast<std::size_t>(replicas_per_node) * static_cast<std::size_t>(replica);
  return are_nodes_blocks(node_of_rank, block, nodes.size()) ? size : 1;
}

}  // namespace

std::optional<int> EdpGroups::group_of(int rank) const {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& ranks = groups[g];
    if (std::ranges::find(ranks, rank) != ranks.end()) return static_cast<int>(g);
  }
  return std::nullopt;
}

EdpGroups edp_groups(std::span<const int> node_of_rank, const ParallelConfig& config) {
  validate(config);
  expects(node_of_rank.size() == static_cast<std::size_t>(config.world_size()),
          fmt::format("edp_groups: node_of_rank has {} ranks, {} make {}", node_of_rank.size(),
                      to_string(config), config.world_size()));
  EdpGroups result{.size = group_size(node_of_rank, config), .groups = {}};
  if (result.size == 1) return result;
  // all_groups goes by ascending first rank: external replica by replica, and within one by
  // (pp, pcp, tp).
  for (const auto& ranks : all_groups(config, Dimension::Dp)) {
    for (auto from = ranks.begin(); from != ranks.end(); from += result.size) {
      result.groups.emplace_back(from, from + result.size);
    }
  }
  return result;
}

}  // namespace penstock
