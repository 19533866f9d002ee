#pragma once

#include <memory>
#include <optional>
#include <string>

#include "penstock/comm/communicator.hpp"

namespace penstock {

/// This process's part in a job of several processes, as its launcher told it.
struct Launch {
  int rank = 0;
  int size = 1;
  int local_rank = 0;   ///< Among the ranks of this machine.
  int local_size = 0;   ///< 0: not told.
  std::string address;  ///< Where rank 0 of the job listens; empty if the launcher names no place.
  std::string source;   ///< "penstock", "torchrun", "Open MPI", "PMI" or "Slurm".
};

/// Looks for the variables of the launchers that we know: our own first, then those of torchrun,
/// Open MPI, PMI and Slurm. Nothing if none of them started this process.
///
/// `PENSTOCK_ADDRESS` names the address whoever the launcher is. Without it, ranks of one machine
/// meet at a name made of the job's id, and torchrun's of several at the port after MASTER_PORT.
///
/// Errors: InvalidArgument, naming the variable, for a value that makes no sense.
std::optional<Launch> detect_launch();

/// Joins the group of all ranks of the job.
///
/// Errors: as join_socket_group; Unsupported if the launcher named no address.
std::unique_ptr<Communicator> join_launch(const Launch& launch, const CommOptions& options = {});

}  // namespace penstock
