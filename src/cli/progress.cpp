#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "cli/byte_count.hpp"

namespace penstock::cli {
namespace {

constexpr auto kTerminalPause = std::chrono::milliseconds(100);
constexpr auto kPipePause = std::chrono::seconds(2);

}  // namespace

Progress::Progress(std::string job)
    : job_(std::move(job)),
      is_terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (has_open_line_) std::fputc('\n', stderr);
}

void Progress::report(std::string_view item, std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const auto now = Clock::now();
  const bool is_end = done_bytes == total_bytes;
  if (now < next_ && !is_end) return;
  next_ = now + (is_terminal_ ? Clock::duration(kTerminalPause) : Clock::duration(kPipePause));
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share =
      total_bytes == 0 ? 1.0 : static_cast<double>(done_bytes) / static_cast<double>(total_bytes);
  const std::string line =
      fmt::format("{}: {:3.0f} %  {} of {}  {:.1f} s  {}", job_, 100.0 * share,
                  byte_count(done_bytes), byte_count(total_bytes), seconds, item);
  // "\033[K" clears what a longer line before has left.
  std::fputs((is_terminal_ ? "\r" + line + "\033[K" : line + "\n").c_str(), stderr);
  has_open_line_ = is_terminal_;
}

}  // namespace penstock::cli
