#pragma once

#include <functional>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/topology/node_map.hpp"

namespace penstock {

/// Tells which ranks' memory this rank can open. Must make the same collective calls on every rank.
using ReachProbe = std::function<std::vector<bool>(Communicator& comm)>;

/// Finds the nodes: ranks that can open each other's shared memory, whatever the configuration says.
///
/// Collective: every rank; all get the same answer. `probe` defaults to passing a memory descriptor
///             over an abstract AF_UNIX socket, so separate network namespaces and separate users are
///             separate nodes. A contradiction is logged as a warning by rank 0.
/// Errors:     InvalidArgument on all ranks if a probe answers for another number of ranks.
/// Cost:       size() local connections a rank, five small collectives.
NodeMap find_nodes(Communicator& comm, const ReachProbe& probe = {});

}  // namespace penstock
