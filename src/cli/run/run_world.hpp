#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/run/run_options.hpp"
#include "penstock/comm/communicator.hpp"

namespace penstock::cli {

/// Runs `body` on every rank and gives the exit status.
///
/// Ranks are, in this order: what a launcher has started (mpirun, torchrun, or this command itself);
/// with options.uses_processes, processes of `command_line` that are started here; else threads.
/// `body` is called once in each process, or on each thread; what rank 0 returns counts.
int run_world(const RunOptions& options, const std::vector<std::string>& command_line,
              const std::function<int(Communicator&)>& body);

}  // namespace penstock::cli
