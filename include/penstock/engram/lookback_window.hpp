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
  /// `depth` is N - 1. The position can go back `max_rollback` from the furthest that it has been.
  ///
  /// Errors: InvalidArgument below 1 and 0.
  explicit LookbackWindow(int depth, int max_rollback = 64);

  /// Number of tokens so far; the next token's position.
  std::int64_t position() const { return position_; }

  /// Takes the next tokens, oldest first.
  void append(std::span<const std::int32_t> token_ids);

  /// Takes the last `count` tokens back, for rejected speculative tokens.
  ///
  /// Errors: InvalidArgument for more than there are, or if it would go further back than
  ///         max_rollback; nothing has changed then.
  void rollback(int count);

  /// Forgets everything.
  void reset();

  /// A copy for another beam or branch.
  LookbackWindow fork() const { return *this; }

  /// The newest `depth` tokens, newest first, -1 before the start.
  ///
  /// Shapes: out [depth]. Errors: InvalidArgument for another size.
  void read(std::span<std::int32_t> out) const;

 private:
  int depth_ = 0;
  int max_rollback_ = 0;
  std::int64_t position_ = 0;
  std::int64_t furthest_ = 0;       ///< Largest position since the last reset.
  std::vector<std::int32_t> ring_;  ///< Token of position p at p % size.
};

}  // namespace penstock
