#include "comm/peer_links.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/to_size.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

// News is on its way when the connection closes: on one machine it has arrived already.
constexpr auto kLastWordsTimeout = std::chrono::milliseconds(200);

// A rank that leaves because another failed passes on who that was.
constexpr std::string_view kLeftAfter = "left the group after ";

}  // namespace

/// What goes over a link: small enough that an idle socket always takes it whole.
struct PeerLinks::Record {
  static constexpr std::uint32_t kFailed = 1;
  static constexpr std::uint32_t kLeft = 2;

  std::uint32_t kind = 0;
  std::int32_t rank = 0;
  std::uint64_t calls = 0;
  std::uint64_t is_departure = 0;
  std::array<char, 488> cause{};  ///< Ends with a zero byte.

  void set_cause(std::string_view text) noexcept {
    std::copy_n(text.begin(), std::min(text.size(), cause.size() - 1), cause.begin());
  }
  std::string get_cause() const { return {cause.begin(), std::ranges::find(cause, '\0')}; }
};

std::string_view PeerLinks::Failure::reason() const {
  const std::string_view text = cause;
  const bool has_reason = is_departure && text.starts_with(kLeftAfter);
  return has_reason ? text.substr(kLeftAfter.size()) : std::string_view();
}

PeerLinks::PeerLinks(int rank, std::vector<UniqueFd> links, std::vector<int> world_ranks)
    : rank_(rank),
      world_ranks_(std::move(world_ranks)),
      peers_(links.size()) {
  for (std::size_t r = 0; r < links.size(); ++r) peers_[r].link = std::move(links[r]);
}

PeerLinks::~PeerLinks() = default;

void PeerLinks::add_to(std::vector<pollfd>& waiting) const {
  const std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_) {
    if (peer.link && !peer.is_gone) {
      waiting.push_back({.fd = peer.link.get(), .events = POLLIN, .revents = 0});
    }
  }
}

void PeerLinks::read_news() {
  const std::lock_guard lock(mutex_);
  read_all();
}

void PeerLinks::read_all() {
  for (Peer& peer : peers_) {
    if (peer.link && !peer.is_gone) read_from(peer);
  }
}

void PeerLinks::read_from(Peer& peer) {
  for (;;) {
    const std::size_t have = peer.received.size();
    peer.received.resize(sizeof(Record));
    const Transfer transfer = receive_some(peer.link.get(), std::span(peer.received).subspan(have));
    peer.received.resize(have + transfer.bytes);
    if (peer.received.size() == sizeof(Record)) {
      Record record;
      std::memcpy(&record, peer.received.data(), sizeof(record));
      peer.received.clear();
      take(record, peer);
      continue;
    }
    if (transfer.is_closed) peer.is_gone = true;
    if (transfer.is_closed || transfer.bytes == 0) return;
  }
}

void PeerLinks::take(const Record& record, Peer& peer) {
  if (record.kind == Record::kLeft) {
    peer.calls_when_left = record.calls;
    peer.reason = record.get_cause();
  } else if (record.kind == Record::kFailed && is_news(record.calls) && record.rank >= 0 &&
             record.rank < size()) {
    failure_ = Failure{record.rank, record.calls, record.is_departure != 0, record.get_cause()};
  }
}

void PeerLinks::await_last_words(int peer) {
  const Deadline deadline = std::chrono::steady_clock::now() + kLastWordsTimeout;
  for (;;) {
    pollfd waiting{.fd = -1, .events = POLLIN, .revents = 0};
    {
      const std::lock_guard lock(mutex_);
      read_all();
      if (failure_ || peers_[to_size(peer)].is_gone) return;
      waiting.fd = peers_[to_size(peer)].link.get();
    }
    if (::poll(&waiting, 1, poll_timeout(deadline)) == 0) return;
  }
}

std::optional<PeerLinks::Failure> PeerLinks::failure(std::uint64_t calls) const {
  const std::lock_guard lock(mutex_);
  return failure_ && failure_->calls <= calls ? failure_ : std::nullopt;
}

void PeerLinks::raise(const Failure& failure) const {
  const int world = world_ranks_[to_size(failure.rank)];
  const std::string where =
      world == failure.rank ? std::string() : fmt::format(" ({} in the whole group)", world);
  if (const auto reason = failure.reason(); !reason.empty()) {
    throw Error(ErrorCode::PeerFailed,
                fmt::format("{}; so rank {}{} left the group", reason, failure.rank, where));
  }
  throw Error(ErrorCode::PeerFailed,
              fmt::format("rank {}{} failed: {}", failure.rank, where, failure.cause));
}

bool PeerLinks::is_gone(int peer) const {
  const std::lock_guard lock(mutex_);
  return peers_[to_size(peer)].is_gone;
}

PeerLinks::Failure PeerLinks::parting(int peer, std::uint64_t calls) const {
  const std::lock_guard lock(mutex_);
  const Peer& gone = peers_[to_size(peer)];
  Failure failure{.rank = peer, .calls = calls, .is_departure = false, .cause = {}};
  if (gone.calls_when_left) {
    failure.is_departure = true;
    failure.cause = gone.reason.empty() ? "left the group" : std::string(kLeftAfter) + gone.reason;
  } else {
    failure.cause = "its process ended or its connection broke";
  }
  return failure;
}

std::optional<std::uint64_t> PeerLinks::calls_when_left(int peer) const {
  const std::lock_guard lock(mutex_);
  return peers_[to_size(peer)].calls_when_left;
}

void PeerLinks::fail(const Failure& failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_news(failure.calls)) return;
  tell_all(record_of(failure));
  try {
    failure_ = failure;
  } catch (const std::bad_alloc&) {
    failure_ =
        Failure{.rank = failure.rank, .calls = failure.calls, .is_departure = false, .cause = {}};
  }
}

void PeerLinks::leave(std::uint64_t calls, std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_) tell_all(record_of(*failure_));
  Record record{.kind = Record::kLeft, .rank = rank_, .calls = calls};
  record.set_cause(reason);
  tell_all(record);
}

PeerLinks::Record PeerLinks::record_of(const Failure& failure) noexcept {
  Record record{.kind = Record::kFailed,
                .rank = failure.rank,
                .calls = failure.calls,
                .is_departure = failure.is_departure ? 1U : 0U};
  record.set_cause(failure.cause);
  return record;
}

void PeerLinks::tell_all(const Record& record) noexcept {
  for (const Peer& peer : peers_) {
    // Who does not take it finds out when the connection closes.
    if (peer.link) (void)send_some(peer.link.get(), std::as_bytes(std::span(&record, 1)));
  }
}

}  // namespace penstock::detail
