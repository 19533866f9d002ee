#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::test {

using SteadyTime = std::chrono::steady_clock::time_point;

/// What a program said on one of its outputs, and when.
struct TimedLine {
  SteadyTime at;
  std::string text;
};

struct TimedCommand {
  std::vector<std::string> argv;  ///< argv[0] is a path.
  /// More variables; they replace those of the same name.
  std::vector<std::pair<std::string, std::string>> environment = {};
  std::chrono::milliseconds limit = std::chrono::seconds(60);  ///< Then it is killed.
  /// Called once with its process id.
  std::function<void(int pid)> on_start = {};
};

struct TimedResult {
  int exit_code = -1;  ///< -1: a signal ended it.
  bool is_late = false;
  std::vector<TimedLine> out;
  std::vector<TimedLine> err;
  SteadyTime ended;

  const TimedLine* find(std::string_view piece) const {
    const auto found = std::find_if(err.begin(), err.end(), [&](const TimedLine& line) {
      return line.text.find(piece) != std::string::npos;
    });
    return found == err.end() ? nullptr : &*found;
  }

  std::string text() const {
    std::string all;
    for (const TimedLine& line : err) all += line.text + "\n";
    return all;
  }
};

namespace detail {

inline std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& more) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  for (const auto& [name, value] : more) {
    std::erase_if(entries, [&](const std::string& e) { return e.starts_with(name + "="); });
    entries.push_back(name + "=" + value);
  }
  return entries;
}

inline std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// The read end of a pipe, cut into lines.
class LineReader {
 public:
  LineReader() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~LineReader() {
    close_write_end();
    if (ends_[0] >= 0) ::close(ends_[0]);
  }
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  int write_end() const { return ends_[1]; }
  pollfd waiting() const { return {.fd = ends_[0], .events = POLLIN, .revents = 0}; }
  bool is_open() const { return ends_[0] >= 0; }
  void close_write_end() {
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
  }

  void read(std::vector<TimedLine>& lines) {
    std::array<char, 4096> buffer{};
    while (is_open()) {
      const ssize_t count = ::read(ends_[0], buffer.data(), buffer.size());
      if (count < 0) return;
      if (count == 0) ::close(std::exchange(ends_[0], -1));
      for (const char c : std::string_view(buffer.data(), static_cast<std::size_t>(count))) {
        if (c != '\n') {
          line_ += c;
          continue;
        }
        lines.push_back({std::chrono::steady_clock::now(), std::exchange(line_, {})});
      }
    }
  }

 private:
  std::array<int, 2> ends_{-1, -1};
  std::string line_;
};

}  // namespace detail

/// Runs a program to its end and keeps what it said. Kills it when it takes too long.
inline TimedResult run_timed(TimedCommand command) {
  detail::LineReader out;
  detail::LineReader err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write_end(), STDERR_FILENO);
  auto variables = detail::environment_with(command.environment);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, command.argv[0].c_str(), &actions, nullptr,
                    detail::pointers(command.argv).data(), detail::pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("posix_spawn " + command.argv[0]);
  out.close_write_end();
  err.close_write_end();

  if (command.on_start) command.on_start(pid);

  TimedResult result;
  const auto deadline = std::chrono::steady_clock::now() + command.limit;
  int status = 0;
  for (;;) {
    std::vector<pollfd> waiting;
    if (out.is_open()) waiting.push_back(out.waiting());
    if (err.is_open()) waiting.push_back(err.waiting());
    ::poll(waiting.data(), waiting.size(), waiting.empty() ? 1 : 20);
    out.read(result.out);
    err.read(result.err);
    if (::waitpid(pid, &status, WNOHANG) == pid) break;
    if (std::chrono::steady_clock::now() < deadline || result.is_late) continue;
    result.is_late = true;
    ::kill(pid, SIGKILL);
  }
  result.ended = std::chrono::steady_clock::now();
  out.read(result.out);
  err.read(result.err);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace penstock::test
