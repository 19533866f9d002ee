#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/socket.hpp"

namespace penstock::detail {

/// One connection to every other rank that carries nothing but news of failures, so that it is never
/// in the middle of something else when there is news. The system closes it when a rank dies.
///
/// Threads: one at a time.
class PeerLinks {
 public:
  struct Failure {
    int rank = 0;
    std::uint64_t calls = 0;  ///< Calls that the rank surely finished: they can end well elsewhere.
    std::string cause;
  };

  PeerLinks() = default;

  /// Shapes: links [size], empty at `rank`; world_ranks [size], for messages.
  PeerLinks(int rank, std::vector<UniqueFd> links, std::vector<int> world_ranks);
  ~PeerLinks();
  PeerLinks(PeerLinks&&) noexcept = default;
  PeerLinks& operator=(PeerLinks&&) noexcept = default;

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

  /// Throws PeerFailed if a rank failed that does not finish the call after `calls` finished ones.
  /// A rank that fails later does not spoil a call that it took part in.
  void check(std::uint64_t calls) const;

  /// Whether `peer` can say nothing more, and what is known of why.
  bool is_gone(int peer) const;
  std::string parting(int peer) const;

  /// Calls that `peer` had finished when it left in good order; nothing if it has not, or died.
  std::optional<std::uint64_t> calls_when_left(int peer) const;

  /// Records that `rank` failed after `calls` finished calls, and tells the others. The earliest one
  /// counts.
  void fail(int rank, std::uint64_t calls, std::string_view cause) noexcept;

  /// Says goodbye: this rank has finished `calls` calls and wants no more.
  void leave(std::uint64_t calls) noexcept;

 private:
  struct Record;
  struct Peer {
    UniqueFd link;
    std::vector<std::byte> received;  ///< The part of a record that has arrived.
    bool is_gone = false;
    std::optional<std::uint64_t> calls_when_left;
  };

  void read_from(Peer& peer);
  void take(const Record& record, Peer& peer);
  bool is_news(std::uint64_t calls) const { return !failure_ || calls < failure_->calls; }
  void tell_all(const Record& record) noexcept;

  int rank_ = 0;
  std::vector<Peer> peers_;
  std::vector<int> world_ranks_;
  std::optional<Failure> failure_;  ///< The one with the fewest calls; of these, the first.
};

}  // namespace penstock::detail
