#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

/// Watches work that the driver does piece by piece: it can be stopped between two pieces, has a
/// deadline and reports progress.
class PieceWatch {
 public:
  /// `call` names what the driver is asked for, `total` is in bytes.
  PieceWatch(std::string call, std::size_t total);

  /// Called before each piece, with the bytes that are done.
  ///
  /// Errors: PeerFailed once stopped, Timeout past the deadline.
  void pass(std::size_t done, const StopFlag& stop);

 private:
  using Clock = std::chrono::steady_clock;

  std::string call_;
  std::size_t total_;
  Clock::time_point start_;
  Clock::time_point next_report_;
};

}  // namespace penstock::detail
