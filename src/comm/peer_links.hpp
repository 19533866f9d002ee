#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/socket.hpp"

namespace penstock::detail {

/// One connection to every other rank that carries nothing but news of failures, so that it is never
/// in the middle of something else when there is news. The system closes it when a rank dies.
///
/// Threads: any.
class PeerLinks {
 public:
  struct Failure {
    int rank = 0;
    std::uint64_t calls = 0;  ///< Calls that the rank surely finished: they can end well elsewhere.
    bool is_departure = false;  ///< It left this group in good order, but too early.
    std::string cause;

    /// The failure after which a rank departed, "rank 3 of the whole group failed: ..."; empty if
    /// this is no departure or had no such reason.
    std::string_view reason() const;
  };

  /// Shapes: links [size], empty at `rank`; world_ranks [size], for messages.
  PeerLinks(int rank, std::vector<UniqueFd> links, std::vector<int> world_ranks);
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  /// Adds what to wait for, so that news ends a poll().
  void add_to(std::vector<pollfd>& waiting) const;

  /// Takes what has arrived; does not wait.
  void read_news();

  /// Waits a moment for the last words of a rank whose other connection has closed: it may have
  /// named the rank that failed first.
  void await_last_words(int peer);

  /// The failure of a rank that does not finish the call after `calls` finished ones; nothing if
  /// none is known. A rank that fails later does not spoil a call that it took part in.
  std::optional<Failure> failure(std::uint64_t calls) const;

  /// PeerFailed with the rank and its cause.
  [[noreturn]] void raise(const Failure& failure) const;

  /// Whether `peer` can say nothing more.
  bool is_gone(int peer) const;

  /// What is known of why `peer` is gone, as the failure of the call after `calls` finished ones.
  Failure parting(int peer, std::uint64_t calls) const;

  /// Calls that `peer` had finished when it left in good order; nothing if it has not, or died.
  std::optional<std::uint64_t> calls_when_left(int peer) const;

  /// Records a failure and tells the others. The one with the fewest calls counts.
  void fail(const Failure& failure) noexcept;

  /// Says goodbye: this rank has finished `calls` calls and wants no more. A failure that it knows
  /// of goes first, so that nobody takes this for the cause; `reason` is one of another group.
  void leave(std::uint64_t calls, std::string_view reason) noexcept;

 private:
  struct Record;
  struct Peer {
    UniqueFd link;
    std::vector<std::byte> received;  ///< The part of a record that has arrived.
    bool is_gone = false;
    std::optional<std::uint64_t> calls_when_left;
    std::string reason;  ///< Why it left, if that is known.
  };

  void read_all();
  void read_from(Peer& peer);
  void take(const Record& record, Peer& peer);
  bool is_news(std::uint64_t calls) const { return !failure_ || calls < failure_->calls; }
  void tell_all(const Record& record) noexcept;
  static Record record_of(const Failure& failure) noexcept;

  const int rank_;
  const std::vector<int> world_ranks_;
  mutable std::mutex mutex_;
  std::vector<Peer> peers_;
  std::optional<Failure> failure_;  ///< The one with the fewest calls; of these, the first.
};

}  // namespace penstock::detail
