#include "table/placements/placement_order.hpp"

#include "penstock/core/device.hpp"
#include "penstock/table/host_backing.hpp"

namespace penstock::detail {
namespace {

std::vector<Placement> asked_for(const TableOptions& options) {
  if (options.placement != Placement::Auto) return {options.placement};
  const bool is_cpu = options.device.kind == DeviceKind::Cpu;
  // Only host_shared has a backing, so that naming one asks for it.
  if (is_cpu || options.backing != HostBacking::Auto) return {Placement::HostShared};
  return {Placement::Device, Placement::HostShared};
}

}  // namespace

PlacementOrder placements_to_try(const TableOptions& options) {
  PlacementOrder result;
  result.order = asked_for(options);
  result.num_asked_for = result.order.size();
  if (!options.may_fall_back) return result;
  const bool is_cpu = options.device.kind == DeviceKind::Cpu;
  const Placement last = result.order.back();
  const bool is_on_gpu = last == Placement::Device || last == Placement::Peer;
  if (is_on_gpu) result.order.push_back(Placement::HostShared);
  if (is_cpu && last != Placement::File) result.order.push_back(Placement::File);
  return result;
}

}  // namespace penstock::detail
