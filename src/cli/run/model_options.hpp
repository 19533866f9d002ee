#pragma once

#include "cli/run/run_options.hpp"
#include "penstock/checkpoint/model_dir.hpp"

namespace penstock::cli {

/// Refuses options that the model has no use for, rather than leave them without effect.
///
/// Errors: InvalidArgument, with the options, what they are for and what the model has; also for a
///         model that `penstock run` does not serve.
void check_model_options(const RunOptions& options, const ModelDir& model);

}  // namespace penstock::cli
