#include "table/placements/piece_watch.hpp"

#include <fmt/format.h>

#include <utility>

#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"

namespace penstock::detail {
namespace {

// Far above what slow pages take (0.3 s a GiB); a driver beyond it hangs rather than works.
constexpr std::chrono::seconds kDeadline{30};
constexpr std::chrono::seconds kDeadlinePerGib{5};

constexpr std::chrono::seconds kProgressInterval{2};

}  // namespace

PieceWatch::PieceWatch(std::string call, std::size_t total)
    : call_(std::move(call)),
      total_(total),
      start_(Clock::now()),
      next_report_(start_ + kProgressInterval) {}

void PieceWatch::pass(std::size_t done, const StopFlag& stop) {
  stop.check();
  const auto now = Clock::now();
  const auto gibs = static_cast<int>((total_ >> 30U) + 1);
  if (now - start_ >= kDeadline + gibs * kDeadlinePerGib) {
    throw Error(ErrorCode::Timeout,
                fmt::format("{}: {} of {} bytes after {} s", call_, done, total_,
                            std::chrono::round<std::chrono::seconds>(now - start_).count()));
  }
  if (now < next_report_) return;
  log(LogLevel::Info, fmt::format("{}: {} of {} bytes", call_, done, total_));
  next_report_ = now + kProgressInterval;
}

}  // namespace penstock::detail
