#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

// Every subcommand is one file with one function: it adds the subcommand and its options to `app`
// and returns nothing. What runs it is put into `action`, which gives the exit status. Subcommands
// use only Penstock's public headers, write results to stdout and everything else to stderr.
namespace penstock::cli {

using Action = std::function<int()>;

void add_bench_command(CLI::App& app, Action& action);
void add_check_command(CLI::App& app, Action& action);
void add_hash_command(CLI::App& app, Action& action);
void add_inspect_command(CLI::App& app, Action& action);
void add_make_model_command(CLI::App& app, Action& action);

/// `command_line` is how this command was started, for ranks that are processes of it.
void add_run_command(CLI::App& app, const std::vector<std::string>& command_line, Action& action);

}  // namespace penstock::cli
