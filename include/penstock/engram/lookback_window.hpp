#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

/// The last tokens of one sequence, for engines that keep no token history themselves.
///
/// Threads: not shared between threads.
class LookbackWindow {
 public:
  /// `depth` is N - 1. `max_rollback` tokens can be taken back at any time.
  ///
  /// Errors: InvalidArgument below 1 and 0.
  explicit LookbackWindow(int depth, int max_rollback = 64);

  /// Number of tokens so far; the next token's position.
  std::int64_t position() const { return position_; }

  void append(std::span<const std::int32_t> token_ids);

  /// Takes the last `count` tokens back, for rejected speculative tokens.
  ///
  /// Errors: InvalidArgument for more than max_rollback, or more than there are.
  void rollback(int count);

  /// Forgets everything.
  void reset();

  /// A copy for another beam or branch.
  LookbackWindow fork() const { return *this; }

  /// The newest `depth` tokens, newest first, -1 before the start.
  ///
  /// Shapes: out [depth].
  void read(std::span<std::int32_t> out) const;

 private:
  int depth_ = 0;
  int max_rollback_ = 0;
  std::int64_t position_ = 0;
  std::vector<std::int32_t> ring_;  ///< Token of position p at p % size.
};

}  // namespace penstock
