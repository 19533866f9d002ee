// What the ranks of the multi-process tests run: rank_program SCENARIO [ARGUMENT...].
// Exit codes: 0 done, 3 a rank's own failure, 4 another rank failed.

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/comm/launch.hpp"
#include "penstock/comm/launcher.hpp"
#include "penstock/comm/nodes.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using Arguments = std::span<char*>;

constexpr int kExitOwnFailure = 3;
constexpr int kExitPeerFailed = 4;

/// Microseconds on a clock that all processes of a machine share.
long long now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void die_now() {
  std::fprintf(stderr, "killed %lld\n", now_us());
  std::raise(SIGKILL);
}

/// Says hello on both outputs and meets the others once.
int greet(const Launch& launch, Arguments) {
  std::printf("out %d\n", launch.rank);
  std::fprintf(stderr, "err %d of %d\nand a line without an end", launch.rank, launch.size);
  join_launch(launch)->barrier();
  return 0;
}

/// greet, but rank ARGUMENT throws after the meeting.
int throw_once(const Launch& launch, Arguments arguments) {
  const auto comm = join_launch(launch);
  comm->barrier();
  if (launch.rank == std::atoi(arguments[0])) throw std::runtime_error("row 7 is missing");
  comm->barrier();
  return 0;
}

/// Rank 0 fails; the others never stop talking.
int talk(const Launch& launch, Arguments) {
  if (launch.rank == 0) return kExitOwnFailure;
  const std::string line(4000, 'a');
  for (;;) std::fprintf(stderr, "%s\n", line.c_str());
}

/// Rank ARGUMENT ends before the meeting, in good order or for want of descriptors; the others come.
int stay_away(const Launch& launch, Arguments arguments) {
  if (launch.rank == std::atoi(arguments[0])) {
    if (std::string(arguments[1]) == "quietly") return 0;
    const rlimit tight{.rlim_cur = 3, .rlim_max = 3};
    ::setrlimit(RLIMIT_NOFILE, &tight);
  }
  join_launch(launch)->barrier();
  return 0;
}

/// Rank 0 fails; the others neither notice nor obey.
int ignore_everything(const Launch& launch, Arguments) {
  if (launch.rank == 0) return kExitOwnFailure;
  std::signal(SIGTERM, SIG_IGN);
  std::this_thread::sleep_for(std::chrono::minutes(5));
  return 0;
}

/// Becomes a launcher of ranks that wait for ever, and tells their ids.
int nest(const Launch&, Arguments) {
  LaunchOptions options;
  options.on_started = [](const std::vector<int>& process_ids) {
    for (const int id : process_ids) std::fprintf(stderr, "grandchild %d\n", id);
    std::fprintf(stderr, "all started\n");
  };
  launch_processes({own_executable(), "sleep"}, 3, options);
  return 0;
}

int sleep_for_ever(const Launch&, Arguments) {
  std::this_thread::sleep_for(std::chrono::minutes(5));
  return 0;
}

/// Finds the nodes and prints the one of each rank. Ranks from FIRST on move to a machine of their
/// own, as far as sharing memory goes.
int print_nodes(const Launch& launch, Arguments arguments) {
  if (launch.rank >= std::atoi(arguments[0]) && ::unshare(CLONE_NEWNET | CLONE_NEWUTS) != 0) {
    std::fprintf(stderr, "no right to make a namespace\n");
  }
  const auto comm = join_launch(launch);
  std::string line = "nodes";
  for (const int node : find_nodes(*comm).node_of_rank) line += " " + std::to_string(node);
  std::fprintf(stderr, "%s\n", line.c_str());
  comm->barrier();
  return 0;
}

/// A short job in which rank VICTIM kills itself at POINT: a name below, or "start:N" or "after:N"
/// for N microseconds after the start or after the meeting.
class Job {
 public:
  using Join = std::function<std::unique_ptr<Communicator>()>;

  Job(const Launch& launch, Arguments arguments, Join join)
      : launch_(launch),
        join_(std::move(join)),
        is_victim_(launch.rank == std::atoi(arguments[0])),
        point_(arguments[1]) {}

  void run() {
    die_on_time("start:");
    at("before-join");
    comm_ = join_();
    at("joined");
    die_on_time("after:");
    part_ = comm_->split(launch_.rank % 2, launch_.rank);
    at("split");
    // Killed by the clock, the victim must not be done before its time.
    const int steps = point_.find(':') != std::string::npos ? 1'000'000 : 3;
    for (int step = 0; step < steps; ++step) run_step(step);
  }

 private:
  /// For a point of the form "<prefix><microseconds>": dies that long after this call.
  void die_on_time(const std::string& prefix) const {
    if (!is_victim_ || !point_.starts_with(prefix)) return;
    const std::chrono::microseconds delay(std::atoi(point_.c_str() + prefix.size()));
    std::thread([delay] {
      std::this_thread::sleep_for(delay);
      die_now();
    }).detach();
  }

  void at(const std::string& point) const {
    if (is_victim_ && point == point_) die_now();
  }

  void run_step(int step) {
    const std::string name = "step" + std::to_string(step);
    const auto size = static_cast<std::size_t>(comm_->size());
    at(name);
    const std::vector<std::byte> block(64U << 10U);
    std::vector<std::byte> gathered(size * block.size());
    comm_->all_gather(block, gathered);
    at(name + "-gathered");
    const auto part_size = static_cast<std::size_t>(part_->size());
    std::vector<std::byte> exchanged(part_size * 1000);
    part_->all_to_all(std::vector<std::byte>(exchanged.size()), exchanged, 1000);
    at(name + "-exchanged");
    comm_->broadcast(std::span(gathered).first(block.size()), step % comm_->size());
    comm_->barrier();
    at(name + "-end");
  }

  const Launch& launch_;
  const Join join_;
  const bool is_victim_;
  const std::string point_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<Communicator> part_;
};

int run_job(const Launch& launch, Arguments arguments) {
  Job(launch, arguments, [&] { return join_launch(launch); }).run();
  std::fprintf(stderr, "done\n");
  return 0;
}

int report(const Error& error) {
  std::fprintf(stderr, "heard %lld %s: %s\n", now_us(),
               std::string(to_string(error.code())).c_str(), error.what());
  return error.code() == ErrorCode::PeerFailed ? kExitPeerFailed : kExitOwnFailure;
}

/// The same with the mpi engine, under mpirun.
int run_mpi_job(const Launch& launch, Arguments arguments) {
  try {
    Job(launch, arguments, [] { return make_mpi_communicator(); }).run();
    return 0;
  } catch (const Error& error) {
    const int code = report(error);
    // mpirun kills the others as soon as one ends, also those that are about to speak.
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return code;
  }
}

int run(Arguments arguments) {
  struct Scenario {
    const char* name;
    int (*run)(const Launch&, Arguments);
  };
  const std::vector<Scenario> scenarios{
      {"greet", greet},         {"throw", throw_once},     {"ignore", ignore_everything},
      {"nest", nest},           {"sleep", sleep_for_ever}, {"job", run_job},
      {"mpi-job", run_mpi_job}, {"nodes", print_nodes},    {"talk", talk},
      {"stay-away", stay_away},
  };
  const auto launch = detect_launch();
  if (!launch || arguments.size() < 2) return kExitOwnFailure;
  for (const Scenario& scenario : scenarios) {
    if (std::string(scenario.name) == arguments[1]) {
      return scenario.run(*launch, arguments.subspan(2));
    }
  }
  return kExitOwnFailure;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  try {
    return penstock::run({argv, static_cast<std::size_t>(argc)});
  } catch (const penstock::Error& error) {
    return penstock::report(error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed %s\n", error.what());
    return penstock::kExitOwnFailure;
  }
}
