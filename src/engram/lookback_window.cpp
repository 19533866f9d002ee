#include "penstock/engram/lookback_window.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "penstock/core/error.hpp"

namespace penstock {

LookbackWindow::LookbackWindow(int depth, int max_rollback)
    : depth_(depth),
      max_rollback_(max_rollback) {
  expects(depth >= 1, fmt::format("LookbackWindow: found depth {}, needed: at least 1", depth));
  expects(max_rollback >= 0,
          fmt::format("LookbackWindow: found max_rollback {}, needed: at least 0", max_rollback));
  ring_.resize(static_cast<std::size_t>(depth) + static_cast<std::size_t>(max_rollback));
}

void LookbackWindow::append(std::span<const std::int32_t> token_ids) {
  const auto size = std::ssize(ring_);
  // Only the newest tokens can ever be read; the older ones just move the position.
  const auto skipped = std::max<std::ptrdiff_t>(0, std::ssize(token_ids) - size);
  for (auto i = skipped; i < std::ssize(token_ids); ++i) {
    ring_[static_cast<std::size_t>((position_ + i) % size)] =
        token_ids[static_cast<std::size_t>(i)];
  }
  position_ += std::ssize(token_ids);
  furthest_ = std::max(furthest_, position_);
}

void LookbackWindow::rollback(int count) {
  expects(count >= 0 && count <= position_,
          fmt::format("LookbackWindow::rollback: found {} of {} tokens, needed: 0 to {}", count,
                      position_, position_));
  const std::int64_t behind = furthest_ - (position_ - count);
  expects(behind <= max_rollback_,
          fmt::format("LookbackWindow::rollback: {} tokens would go {} behind the furthest "
                      "position {}, needed: at most max_rollback {}",
                      count, behind, furthest_, max_rollback_));
  position_ -= count;
}

void LookbackWindow::reset() {
  position_ = 0;
  furthest_ = 0;
}

void LookbackWindow::read(std::span<std::int32_t> out) const {
  expects(std::ssize(out) == depth_,
          fmt::format("LookbackWindow::read: out has {} entries, needed: depth {}", out.size(),
                      depth_));
  std::int64_t position = position_;
  for (auto& token : out) {
    --position;
    token = position < 0 ? -1 : ring_[static_cast<std::size_t>(position % std::ssize(ring_))];
  }
}

}  // namespace penstock
