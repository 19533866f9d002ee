#include "penstock/comm/nodes.hpp"

#include <fmt/core.h>

#include <cstddef>
#include <string>

#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"
#include "topology/shared_memory_probe.hpp"

namespace penstock {
namespace {

std::vector<bool> probe_shared_memory(Communicator& comm) {
  detail::SharedMemoryProbe probe;
  std::vector<std::string> names;
  for (const auto& bytes : comm.all_gather_object(std::as_bytes(std::span(probe.name())))) {
    names.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  probe.connect_to(names);
  comm.barrier();
  probe.serve();
  comm.barrier();
  return probe.collect();
}

}  // namespace

NodeMap find_nodes(Communicator& comm, const ReachProbe& probe) {
  std::vector<std::byte> mine;
  for (const bool is_reached : probe ? probe(comm) : probe_shared_memory(comm)) {
    mine.push_back(is_reached ? std::byte{1} : std::byte{0});
  }
  std::vector<std::vector<bool>> can_reach;
  for (const auto& row : comm.all_gather_object(mine)) {
    expects(row.size() == static_cast<std::size_t>(comm.size()),
            fmt::format("find_nodes: the probe of rank {} answered for {} ranks, the group has {}",
                        can_reach.size(), row.size(), comm.size()));
    auto& answer = can_reach.emplace_back();
    for (const std::byte is_reached : row) answer.push_back(is_reached != std::byte{0});
  }
  NodeMap map = group_into_nodes(can_reach);
  if (!map.contradiction.empty() && comm.rank() == 0) {
    log(LogLevel::Warning, "find_nodes: " + map.contradiction + "; nodes are taken to be smaller");
  }
  return map;
}

}  // namespace penstock
