#include "comm/absent_ranks.hpp"

#include "comm/startup.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {

AbsentRanks::AbsentRanks(const std::string& address) {
  try {
    address_ = SocketAddress::parse(address);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
    // The ranks say so themselves.
  }
}

void AbsentRanks::add(int rank) {
  if (rank == 0) {
    has_hub_ended_ = true;
  } else {
    untold_.push_back(rank);
  }
}

void AbsentRanks::tell(int first) {
  if (!address_) return;
  if (!has_hub_ended_) {
    std::erase_if(untold_, [&](int rank) { return tell_hub_of_absence(*address_, rank); });
    return;
  }
  try {
    if (in_place_of_hub_.get() < 0) in_place_of_hub_ = Listener(*address_);
    while (UniqueFd leaf = in_place_of_hub_.accept()) tell_leaf_of_absence(std::move(leaf), first);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
    // The address or a descriptor cannot be had now; whoever waits is ended a little later.
  }
}

void AbsentRanks::add_to(std::vector<pollfd>& waiting) const {
  if (in_place_of_hub_.get() < 0) return;
  waiting.push_back({.fd = in_place_of_hub_.get(), .events = POLLIN, .revents = 0});
}

}  // namespace penstock::detail
