#pragma once

#include <atomic>

#include "penstock/core/error.hpp"

namespace penstock::detail {

/// Tells a long piece of work that nobody wants its result any more.
class StopFlag {
 public:
  void stop() noexcept { is_stopped_.store(true, std::memory_order_relaxed); }
  bool is_stopped() const noexcept { return is_stopped_.load(std::memory_order_relaxed); }

  /// Errors: PeerFailed once stop() has been called.
  void check() const {
    if (is_stopped()) throw Error(ErrorCode::PeerFailed, "stopped: another rank failed");
  }

 private:
  std::atomic<bool> is_stopped_{false};
};

}  // namespace penstock::detail
