#include "penstock/comm/launcher.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "comm/absent_ranks.hpp"
#include "comm/socket.hpp"
#include "core/environment.hpp"
#include "core/unique_fd.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::AbsentRanks;
using detail::Deadline;
using detail::UniqueFd;
using Clock = std::chrono::steady_clock;

// A line that long is cut: a rank that never ends its line must not fill the memory.
constexpr std::size_t kMaxLineBytes = 64U << 10U;
// Messages of one rank between two looks at the others: one that never stops talking must not keep
// the launcher from them.
constexpr int kReadsAtOnce = 16;
// What a pipe can hold at most, unless root has raised it: what a rank that has ended has left there.
constexpr int kReadsOfWholePipe = 256;
// The end of a process shows at its closed pipe, unless a child of its own keeps that open. From
// there to its last breath is less than a millisecond.
constexpr auto kReapInterval = std::chrono::milliseconds(100);
constexpr auto kShortReapInterval = std::chrono::milliseconds(1);

Error system_error(const std::string& what) {
  return {ErrorCode::System,
          fmt::format("launch_processes: {}: {}", what, std::system_category().message(errno))};
}

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Pipe open_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw system_error("pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// What a child needs between fork and exec, where it may not allocate.
struct ChildPlan {
  int rank = 0;
  pid_t parent = 0;
  int null_device = -1;
  int stderr_end = -1;
  int report_end = -1;
  char* const* argv = nullptr;
  char* const* environment = nullptr;
};

/// Runs in the child. Only calls that are allowed after fork in a program with threads.
[[noreturn]] void become_rank(const ChildPlan& plan) {
  // The kernel sends the signal when the launching thread dies, also if that was before prctl.
  const bool is_bound = ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == plan.parent;
  bool is_ready = is_bound && ::dup2(plan.stderr_end, STDERR_FILENO) >= 0;
  if (is_ready && plan.rank != 0) {
    is_ready =
        ::dup2(plan.null_device, STDIN_FILENO) >= 0 && ::dup2(plan.null_device, STDOUT_FILENO) >= 0;
  }
  if (is_ready) ::execve(plan.argv[0], plan.argv, plan.environment);
  const int code = errno;
  // Nobody is there to hear of a write that fails.
  [[maybe_unused]] const ssize_t written = ::write(plan.report_end, &code, sizeof(code));
  ::_exit(127);
}

/// A running rank and what it has said.
struct Child {
  int rank = 0;
  pid_t pid = -1;
  UniqueFd stderr_end;
  std::string line = {};
  bool has_ended = false;
};

/// All ranks. Whatever happens, none outlives this object.
class Children {
 public:
  Children(const std::vector<std::string>& argv, const LaunchOptions& options)
      : argv_(argv),
        options_(options) {
    ::fcntl(report_.read_end.get(), F_SETFL, O_NONBLOCK);
  }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    signal_all(SIGKILL);
    for (const Child& child : children_) {
      if (!child.has_ended) ::waitpid(child.pid, nullptr, 0);
    }
  }

  void start(int rank, int size, const std::string& address) {
    std::vector<std::string> arguments = argv_;
    std::vector<std::string> environment = make_environment(rank, size, address);
    const auto argument_pointers = pointers_to(arguments);
    const auto environment_pointers = pointers_to(environment);
    const UniqueFd null_device(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null_device) throw system_error("/dev/null");
    Pipe messages = open_pipe();
    const ChildPlan plan{.rank = rank,
                         .parent = ::getpid(),
                         .null_device = null_device.get(),
                         .stderr_end = messages.write_end.get(),
                         .report_end = report_.write_end.get(),
                         .argv = argument_pointers.data(),
                         .environment = environment_pointers.data()};
    const pid_t pid = ::fork();
    if (pid < 0) throw system_error("fork");
    if (pid == 0) become_rank(plan);
    ::fcntl(messages.read_end.get(), F_SETFL, O_NONBLOCK);
    children_.push_back({.rank = rank, .pid = pid, .stderr_end = std::move(messages.read_end)});
  }

  /// No more will start.
  void end_starting() { report_.write_end.reset(); }

  std::vector<int> process_ids() const {
    std::vector<int> ids;
    for (const Child& child : children_) ids.push_back(child.pid);
    return ids;
  }

  bool is_any_alive() const {
    return std::ranges::any_of(children_, [](const Child& child) { return !child.has_ended; });
  }

  void signal_all(int signal) {
    for (const Child& child : children_) {
      if (child.has_ended) continue;
      ::kill(child.pid, signal);
      ::kill(child.pid, SIGCONT);  // one that stands still would not hear of the first
    }
  }

  /// Waits for messages, for an end or for one of `waiting`, at most until `deadline`, and gives
  /// who ended.
  std::vector<ProcessEnd> wait(Deadline deadline, std::vector<pollfd> waiting) {
    auto interval = kReapInterval;
    if (report_.read_end) {
      waiting.push_back({.fd = report_.read_end.get(), .events = POLLIN, .revents = 0});
    }
    for (const Child& child : children_) {
      if (child.stderr_end) {
        waiting.push_back({.fd = child.stderr_end.get(), .events = POLLIN, .revents = 0});
      } else if (!child.has_ended) {
        interval = kShortReapInterval;
      }
    }
    const Deadline next = std::min(deadline, Clock::now() + interval);
    ::poll(waiting.data(), waiting.size(), detail::poll_timeout(next));
    check_started();
    std::vector<ProcessEnd> ends;
    for (Child& child : children_) {
      read_messages(child, kReadsAtOnce);
      if (const auto end = reap(child)) ends.push_back(*end);
    }
    return ends;
  }

 private:
  std::vector<std::string> make_environment(int rank, int size, const std::string& address) const {
    std::vector<std::string> entries = environment_entries();
    const auto set = [&](const std::string& name, const std::string& value) {
      std::erase_if(entries, [&](const std::string& e) { return e.starts_with(name + "="); });
      entries.push_back(fmt::format("{}={}", name, value));
    };
    for (const auto& [name, value] : options_.environment) set(name, value);
    set("PENSTOCK_RANK", std::to_string(rank));
    set("PENSTOCK_SIZE", std::to_string(size));
    set("PENSTOCK_LOCAL_RANK", std::to_string(rank));
    set("PENSTOCK_LOCAL_SIZE", std::to_string(size));
    set("PENSTOCK_ADDRESS", address);
    return entries;
  }

  /// Exec closes the pipe in a child without a word. That is not waited for: a process can be
  /// stopped before.
  void check_started() {
    if (!report_.read_end) return;
    int code = 0;
    const ssize_t count = ::read(report_.read_end.get(), &code, sizeof(code));
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    report_.read_end.reset();
    if (count == 0) return;  // by all
    errno = count == sizeof(code) ? code : EIO;
    throw system_error("cannot start " + argv_[0]);
  }

  void read_messages(Child& child, int most_reads) {
    std::array<char, 4096> buffer{};
    for (int i = 0; i < most_reads && child.stderr_end; ++i) {
      const ssize_t count = ::read(child.stderr_end.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;
      if (count == 0) return end_messages(child);
      take(child, std::string_view(buffer.data(), static_cast<std::size_t>(count)));
    }
  }

  void end_messages(Child& child) {
    child.stderr_end.reset();
    if (!child.line.empty()) pass_on(child);  // a last one that does not end with its line
  }

  void take(Child& child, std::string_view text) {
    for (const char c : text) {
      if (c != '\n') child.line += c;
      if (c == '\n' || child.line.size() >= kMaxLineBytes) pass_on(child);
    }
  }

  void pass_on(Child& child) {
    if (options_.on_stderr) options_.on_stderr(child.rank, child.line);
    child.line.clear();
  }

  std::optional<ProcessEnd> reap(Child& child) {
    if (child.has_ended) return std::nullopt;
    int status = 0;
    if (::waitpid(child.pid, &status, WNOHANG) != child.pid) return std::nullopt;
    child.has_ended = true;
    check_started();
    read_messages(child, kReadsOfWholePipe);
    end_messages(child);  // what a grandchild still says is not the rank's
    ProcessEnd end{.rank = child.rank};
    if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
    return end;
  }

  const std::vector<std::string>& argv_;
  const LaunchOptions& options_;
  Pipe report_ = open_pipe();  ///< Until every program runs; says why one cannot.
  std::vector<Child> children_;
};

/// Decides whom to end when, and who failed first.
class Supervision {
 public:
  Supervision(Children& children, int size, const std::string& address,
              const LaunchOptions& options)
      : children_(children),
        options_(options),
        absent_(address),
        result_{.ends = std::vector<ProcessEnd>(static_cast<std::size_t>(size))} {}

  LaunchResult run() {
    while (children_.is_any_alive()) {
      std::vector<pollfd> waiting;
      absent_.add_to(waiting);
      for (const ProcessEnd& end : children_.wait(next_signal_at_, std::move(waiting))) record(end);
      absent_.tell(first_to_end_);
      if (Clock::now() >= next_signal_at_) send_next_signal();
    }
    return result_;
  }

 private:
  void record(const ProcessEnd& end) {
    result_.ends[static_cast<std::size_t>(end.rank)] = end;
    absent_.add(end.rank);
    if (first_to_end_ < 0) first_to_end_ = end.rank;
    if (!end.is_failure() || next_signal_ == SIGKILL) return;  // after SIGTERM it was us
    if (next_signal_at_ == Deadline::max()) next_signal_at_ = Clock::now() + options_.settle;
    const bool is_echo = end.signal == 0 && end.exit_code == options_.echo_exit_code;
    if (!result_.first_failure || (is_only_echo_ && !is_echo)) {
      result_.first_failure = end;
      is_only_echo_ = is_echo;
      if (!is_echo) first_to_end_ = end.rank;
    }
  }

  void send_next_signal() {
    children_.signal_all(next_signal_);
    next_signal_at_ = Clock::now() + options_.grace;
    next_signal_ = SIGKILL;
  }

  Children& children_;
  const LaunchOptions& options_;
  AbsentRanks absent_;
  LaunchResult result_;
  int first_to_end_ = -1;  ///< The first that failed, as soon as one has.
  bool is_only_echo_ = false;
  int next_signal_ = SIGTERM;
  Deadline next_signal_at_ = Deadline::max();
};

}  // namespace

std::string to_string(const ProcessEnd& end) {
  if (end.signal == 0)
    return fmt::format("rank {} ended with exit code {}", end.rank, end.exit_code);
  const char* name = ::sigdescr_np(end.signal);
  return fmt::format("rank {} was killed by signal {} ({})", end.rank, end.signal,
                     name != nullptr ? name : "unknown");
}

LaunchResult launch_processes(const std::vector<std::string>& argv, int size,
                              const LaunchOptions& options) {
  expects(!argv.empty() && argv[0].find('/') != std::string::npos,
          "launch_processes: argv[0] must be the path of a program");
  expects(size >= 1, fmt::format("launch_processes: size is {}, must be at least 1", size));
  const std::string address =
      options.address.empty() ? "unix:@penstock-" + detail::random_token() : options.address;
  Children children(argv, options);
  for (int rank = 0; rank < size; ++rank) children.start(rank, size, address);
  children.end_starting();
  if (options.on_started) options.on_started(children.process_ids());
  return Supervision(children, size, address, options).run();
}

std::string own_executable() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace penstock
