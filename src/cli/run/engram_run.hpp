#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/run/run_options.hpp"
#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/comm/communicator.hpp"

namespace penstock::cli {

/// Serves the Engram layers of a model on one rank: every step of its replica, from token ids to
/// injected hidden states.
///
/// Collective: over `world`.
/// Returns this rank's part of the report.
nlohmann::json run_engram(const RunOptions& options, const ModelDir& model, Communicator& world);

}  // namespace penstock::cli
