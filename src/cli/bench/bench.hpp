#pragma once

#include <CLI/CLI.hpp>

#include "cli/commands.hpp"

// The subcommands of `penstock bench`. Results are JSON lines on stdout.
namespace penstock::cli {

void add_bench_gate(CLI::App& bench, Action& action);
void add_bench_lookup(CLI::App& bench, Action& action);
void add_bench_prefetch(CLI::App& bench, Action& action);

}  // namespace penstock::cli
