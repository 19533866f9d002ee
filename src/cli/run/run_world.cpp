#include "cli/run/run_world.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string_view>

#include "cli/exit_code.hpp"
#include "penstock/comm/launch.hpp"
#include "penstock/comm/launcher.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

void print_line_of_rank(int rank, std::string_view line) {
  std::fputs(fmt::format("[rank {}] {}\n", rank, line).c_str(), stderr);
}

/// Starts this command once for each rank and waits for all.
int run_processes(const RunOptions& options, const std::vector<std::string>& command_line) {
  LaunchOptions launch;
  launch.on_stderr = print_line_of_rank;
  launch.echo_exit_code = exit_code(ErrorCode::PeerFailed);
  std::vector<std::string> words = command_line;
  words.at(0) = own_executable();
  const LaunchResult result = launch_processes(words, options.parallel.world_size(), launch);
  if (!result.first_failure) return kExitOk;
  const ProcessEnd& failure = *result.first_failure;
  if (failure.signal == 0 && failure.exit_code == kExitVerificationFailed) return failure.exit_code;
  std::fputs(fmt::format("penstock: error: {}\n", to_string(failure)).c_str(), stderr);
  return failure.signal == 0 ? failure.exit_code : exit_code(ErrorCode::PeerFailed);
}

/// One rank of a job that somebody else has started.
int run_rank(Communicator& world, const RunOptions& options,
             const std::function<int(Communicator&)>& body) {
  if (world.size() != options.parallel.world_size()) {
    std::fputs(fmt::format("penstock: error: {} make {} ranks, {} were started\n",
                           to_string(options.parallel), options.parallel.world_size(), world.size())
                   .c_str(),
               stderr);
    return kExitUsage;
  }
  try {
    return body(world);
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  }
}

}  // namespace

int run_world(const RunOptions& options, const std::vector<std::string>& command_line,
              const std::function<int(Communicator&)>& body) {
  if (options.engine == "mpi") {
    const auto world = make_mpi_communicator();
    return run_rank(*world, options, body);
  }
  if (const auto launch = detect_launch(); launch && launch->size > 1) {
    const auto world = join_launch(*launch);
    return run_rank(*world, options, body);
  }
  if (options.uses_processes) return run_processes(options, command_line);
  int status = kExitOk;
  run_thread_group(options.parallel.world_size(), [&](Communicator& world) {
    const int mine = body(world);
    if (world.rank() == 0) status = mine;
  });
  return status;
}

}  // namespace penstock::cli
