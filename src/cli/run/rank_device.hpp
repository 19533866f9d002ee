#pragma once

#include "cli/run/run_options.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"

namespace penstock::cli {

/// Where a rank works: on the CPU, or on the GPUs of its machine in turn.
///
/// Errors: Unsupported if the GPU that was asked for cannot be had.
Device rank_device(const RunOptions& options, const Communicator& world);

}  // namespace penstock::cli
