#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

/// How the process of a rank ended.
struct ProcessEnd {
  int rank = 0;
  int exit_code = 0;  ///< Meaningless if a signal ended it.
  int signal = 0;     ///< 0: it ended by itself.

  bool is_failure() const { return exit_code != 0 || signal != 0; }

  friend bool operator==(const ProcessEnd&, const ProcessEnd&) = default;
};

/// "rank 3 was killed by signal 9 (Killed)", "rank 1 ended with exit code 4".
std::string to_string(const ProcessEnd& end);

struct LaunchOptions {
  /// Receives the ranks' messages line by line. Empty: they are dropped.
  std::function<void(int rank, std::string_view line)> on_stderr = {};
  /// Runs once all ranks have been started, with their process ids.
  std::function<void(const std::vector<int>& process_ids)> on_started = {};
  /// The exit code of a rank that only heard of another's failure, which is then not the first.
  std::optional<int> echo_exit_code = {};
  /// More variables for the ranks.
  std::vector<std::pair<std::string, std::string>> environment = {};
  /// Where the ranks meet; empty: a fresh name on this machine.
  std::string address = {};
  /// After a failure, how long the others may take to end by themselves before SIGTERM ...
  std::chrono::milliseconds settle = std::chrono::seconds(2);
  /// ... and from there on before SIGKILL.
  std::chrono::milliseconds grace = std::chrono::seconds(3);
};

struct LaunchResult {
  std::vector<ProcessEnd> ends;  ///< [size]
  std::optional<ProcessEnd> first_failure = {};
};

/// Runs `size` processes of one program, one for each rank, and returns when all have ended. Each
/// finds its rank by detect_launch(). Rank 0 has the caller's standard input and output, the others
/// none. When a rank ends before the ranks have met, those that wait for it are told.
///
/// Range:   argv[0] is a path.
/// Errors:  InvalidArgument for an empty argv or a size below 1; System if a process cannot be
///          started: those that were are ended first.
/// Threads: the calling thread owns the ranks: the kernel ends them if it dies.
LaunchResult launch_processes(const std::vector<std::string>& argv, int size,
                              const LaunchOptions& options = {});

/// The path of the program that is running.
std::string own_executable();

}  // namespace penstock
