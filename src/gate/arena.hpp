#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/round_up.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {

/// Hands out pieces of one block of memory, front to back. Without memory it only counts, so that
/// the code that lays out a call also tells how much memory the call needs.
class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  Arena() = default;
  explicit Arena(std::span<std::byte> memory) : memory_(memory), has_memory_(true) {}

  /// Errors: Internal if the memory is too small; its size was computed by this very class.
  template <typename Value>
  std::span<Value> take(std::int64_t count) {
    const std::size_t begin = used_;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(Value);
    used_ += round_up(bytes, kAlignment);
    if (!has_memory_) return {};
    if (used_ > memory_.size()) throw Error(ErrorCode::Internal, "GateLinear: workspace too small");
    return {reinterpret_cast<Value*>(memory_.data() + begin), static_cast<std::size_t>(count)};
  }

  std::size_t used() const { return used_; }

 private:
  std::span<std::byte> memory_;
  std::size_t used_ = 0;
  bool has_memory_ = false;
};

}  // namespace penstock::detail
