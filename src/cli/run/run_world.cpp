#include "cli/run/run_world.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "cli/exit_code.hpp"
#include "penstock/comm/launch.hpp"
#include "penstock/comm/launcher.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

constexpr std::string_view kErrorPrefix = "penstock: error: ";

CommOptions comm_options(const RunOptions& options) {
  return {.deadline = options.deadline, .start_deadline = options.deadline};
}

/// Passes on what the ranks say and remembers the error that each ended with.
class RankMessages {
 public:
  void print(int rank, std::string_view line) {
    std::fputs(fmt::format("[rank {}] {}\n", rank, line).c_str(), stderr);
    if (line.starts_with(kErrorPrefix)) errors_[rank] = line.substr(kErrorPrefix.size());
  }

  /// "rank 1 ended with exit code 4: what it said".
  std::string describe(const ProcessEnd& end) const {
    const auto error = errors_.find(end.rank);
    return error == errors_.end() ? to_string(end) : to_string(end) + ": " + error->second;
  }

 private:
  std::map<int, std::string> errors_;
};

// Each rank has a connection, or a place to meet, for each other one.
constexpr int kMostRanksHere = 256;

void check_ranks_here(const RunOptions& options) {
  const int ranks = options.parallel.world_size();
  if (ranks <= kMostRanksHere) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("run: {} make {} ranks, at most {} are started here; needed: fewer, or "
                          "a launcher (mpirun, torchrun) with several machines",
                          to_string(options.parallel), ranks, kMostRanksHere));
}

// Between this command and the ranks that it starts: tells a rank that only heard of a failure from
// the one that failed, whose own error may be one of the environment too.
constexpr int kEchoExitCode = 74;

/// Starts this command once for each rank and waits for all.
int run_processes(const RunOptions& options, const std::vector<std::string>& command_line) {
  LaunchOptions launch;
  RankMessages messages;
  launch.on_stderr = [&](int rank, std::string_view line) { messages.print(rank, line); };
  launch.echo_exit_code = kEchoExitCode;
  std::vector<std::string> words = command_line;
  words.at(0) = own_executable();
  words.insert(words.end(), {"--echo-exit-code", std::to_string(kEchoExitCode)});
  const LaunchResult result = launch_processes(words, options.parallel.world_size(), launch);
  if (!result.first_failure) return kExitOk;
  ProcessEnd failure = *result.first_failure;
  if (failure.exit_code == kEchoExitCode) failure.exit_code = exit_code(ErrorCode::PeerFailed);
  if (failure.signal == 0 && failure.exit_code == kExitVerificationFailed) return failure.exit_code;
  std::fputs(fmt::format("{}{}\n", kErrorPrefix, messages.describe(failure)).c_str(), stderr);
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

/// The rank of a process that a launcher has started.
int run_launched(const Launch& launch, const RunOptions& options,
                 const std::function<int(Communicator&)>& body) {
  try {
    const auto world = join_launch(launch, comm_options(options));
    return run_rank(*world, options, body);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::PeerFailed || options.echo_exit_code == 0) throw;
    std::fputs(fmt::format("{}{}\n", kErrorPrefix, error.what()).c_str(), stderr);
    return options.echo_exit_code;
  }
}

}  // namespace

int run_world(const RunOptions& options, const std::vector<std::string>& command_line,
              const std::function<int(Communicator&)>& body) {
  if (options.engine == "mpi") {
    const auto world = make_mpi_communicator(comm_options(options));
    return run_rank(*world, options, body);
  }
  if (const auto launch = detect_launch(); launch && launch->size > 1) {
    return run_launched(*launch, options, body);
  }
  check_ranks_here(options);
  if (options.uses_processes) return run_processes(options, command_line);
  int status = kExitOk;
  const auto run_thread = [&](Communicator& world) {
    const int mine = body(world);
    if (world.rank() == 0) status = mine;
  };
  run_thread_group(options.parallel.world_size(), run_thread, comm_options(options));
  return status;
}

}  // namespace penstock::cli
