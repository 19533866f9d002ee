#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "cli/bench/lookup_rank.hpp"

namespace penstock::cli {

/// The options that `bench lookup` and `bench prefetch` share.
void add_lookup_options(CLI::App& command, LookupBenchOptions& options);

/// Errors: InvalidArgument, Unsupported; messages begin with `command`.
void check_lookup_options(const std::string& command, const LookupBenchOptions& options);

}  // namespace penstock::cli
