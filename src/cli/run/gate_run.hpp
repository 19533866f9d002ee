#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/run/run_options.hpp"
#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/comm/communicator.hpp"

namespace penstock::cli {

/// Computes the gate projections of a model on one rank: prefill chunks spread over the ranks of
/// prefill context parallelism, decode tokens alike on all of them.
///
/// Collective: over `world`.
/// Returns this rank's part of the report.
nlohmann::json run_gates(const RunOptions& options, const ModelDir& model, Communicator& world);

}  // namespace penstock::cli
