#include "engram/stage/stage_groups.hpp"

#include <utility>

#include "core/failure_point.hpp"
#include "penstock/comm/nodes.hpp"
#include "penstock/core/error.hpp"
#include "penstock/topology/edp.hpp"

namespace penstock::detail {
namespace {

constexpr int kAlone = -1;

/// Whether rows of other ranks can be brought to this rank's device.
bool may_exchange(const EngramStageOptions& options) {
  return options.device.kind == DeviceKind::Cpu || options.uses_nccl;
}

bool may_gather(const EngramStageOptions& options) {
  return options.placement != Placement::Peer && may_exchange(options);
}

/// The communicator that carries rows of `host`'s ranks: `host` itself, or one of their GPUs, which
/// lives on `host` then.
std::unique_ptr<Communicator> for_rows(std::unique_ptr<Communicator>& host,
                                       const EngramStageOptions& options) {
  if (!host || options.device.kind == DeviceKind::Cpu) return std::move(host);
  return make_nccl_communicator(*host, options.device);
}

bool keeps_private_memory(Placement placement) {
  switch (placement) {
    case Placement::Host:
    case Placement::Device:
    case Placement::File: return true;
    case Placement::Auto:
    case Placement::HostShared:
    case Placement::Peer: return false;
  }
  return false;
}

/// Drops a group of one: whoever is alone copies nothing.
std::unique_ptr<Communicator> unless_alone(std::unique_ptr<Communicator> group) {
  return group && group->size() > 1 ? std::move(group) : nullptr;
}

int edp_color(const EdpGroups& groups, int rank, bool shards_over_dp) {
  if (!shards_over_dp) return kAlone;
  return groups.group_of(rank).value_or(kAlone);
}

}  // namespace

StageGroups make_stage_groups(const ParallelConfig& parallel, Communicator& world,
                              const EngramStageOptions& options) {
  failure_point(FailurePoint::StartGroups);
  const int rank = world.rank();
  const RankPlace place = place_of(parallel, rank);
  const NodeMap nodes = find_nodes(world, options.reach);
  const EdpGroups edp = edp_groups(nodes.node_of_rank, parallel);
  const bool is_private = keeps_private_memory(options.placement);
  const bool gathers = may_gather(options);
  expects(world.device().kind == DeviceKind::Cpu,
          "EngramStage: the communicator is of CUDA, needed: one of host memory");
  if (options.shards_over_dp && is_private && !may_exchange(options)) {
    throw Error(ErrorCode::Unsupported,
                "EngramStage: shards over data-parallel ranks on cuda are exchanged through nccl, "
                "which is not asked for; host_shared and peer need no exchange");
  }
  const int node = nodes.node_of_rank[static_cast<std::size_t>(rank)];

  StageGroups groups;
  groups.node = node;
  groups.tp_rank = place.tp;
  groups.tp_size = parallel.tp;
  const int tp_color = gathers ? rank / parallel.tp : kAlone;
  groups.gather_host = unless_alone(world.split(tp_color, rank));
  groups.gather = for_rows(groups.gather_host, options);
  groups.exchange_host =
      unless_alone(world.split(edp_color(edp, rank, is_private && options.shards_over_dp), rank));
  groups.exchange = for_rows(groups.exchange_host, options);
  const int shard_of_node = gathers ? place.tp : 0;
  const int sharing_color =
      is_private ? kAlone : (node * parallel.pp + place.pp) * parallel.tp + shard_of_node;
  groups.sharing = unless_alone(world.split(sharing_color, rank));

  const int exchange_size = groups.exchange ? groups.exchange->size() : 1;
  const int exchange_rank = groups.exchange ? groups.exchange->rank() : 0;
  const int gather_size = groups.gather ? groups.gather->size() : 1;
  const int gather_rank = groups.gather ? groups.gather->rank() : 0;
  groups.shard = {gather_rank * exchange_size + exchange_rank, gather_size * exchange_size};
  return groups;
}

}  // namespace penstock::detail
