#pragma once

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/socket.hpp"

namespace penstock::detail {

/// Ranks of a job that have ended, for the others that may still wait for them at the meeting point.
/// These cannot tell who is late from who will never come; whoever started them all can.
class AbsentRanks {
 public:
  /// `address`: where the ranks meet.
  explicit AbsentRanks(const std::string& address);

  void add(int rank);

  /// Tells who is there. Does not wait; to be called again while ranks run, since one that is slow
  /// comes to the meeting point later. `first` is the rank that failed first.
  void tell(int first);

  /// Adds what to wait for, so that one that comes ends a poll().
  void add_to(std::vector<pollfd>& waiting) const;

 private:
  std::optional<SocketAddress> address_;  ///< Nothing for one that is none: nobody meets there.
  std::vector<int> untold_;               ///< Other than rank 0.
  bool has_hub_ended_ = false;
  Listener in_place_of_hub_;
};

}  // namespace penstock::detail
