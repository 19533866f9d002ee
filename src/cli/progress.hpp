#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::cli {

/// How far a long job is, on stderr: a line that is rewritten on a terminal, a plain line now and
/// then in a pipe.
class Progress {
 public:
  /// `job` starts every line.
  explicit Progress(std::string job);

  /// Ends the line that is being rewritten.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void report(std::string_view item, std::uint64_t done_bytes, std::uint64_t total_bytes);

 private:
  using Clock = std::chrono::steady_clock;

  std::string job_;
  bool is_terminal_;
  bool has_open_line_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_;
};

}  // namespace penstock::cli
