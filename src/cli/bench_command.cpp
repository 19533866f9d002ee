#include "cli/bench/bench.hpp"
#include "cli/commands.hpp"

namespace penstock::cli {

void add_bench_command(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand("bench", "Measure parts of Penstock beside baselines");
  bench->require_subcommand(1);
  add_bench_lookup(*bench, action);
  add_bench_prefetch(*bench, action);
  add_bench_gate(*bench, action);
}

}  // namespace penstock::cli
