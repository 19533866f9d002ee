#include "comm/peer_links.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

std::size_t to_size(int value) {
  return static_cast<std::size_t>(value);
}

// News is on its way when the connection closes: on one machine it has arrived already.
constexpr auto kLastWordsTimeout = std::chrono::milliseconds(200);

}  // namespace

/// What goes over a link: small enough that an idle socket always takes it whole.
struct PeerLinks::Record {
  static constexpr std::uint32_t kFailed = 1;
  static constexpr std::uint32_t kLeft = 2;

  std::uint32_t kind = 0;
  std::int32_t rank = 0;
  std::uint64_t calls = 0;
  std::array<char, 496> cause{};  ///< Ends with a zero byte.
};

PeerLinks::PeerLinks(int rank, std::vector<UniqueFd> links, std::vector<int> world_ranks)
    : rank_(rank),
      peers_(links.size()),
      world_ranks_(std::move(world_ranks)) {
  for (std::size_t r = 0; r < links.size(); ++r) peers_[r].link = std::move(links[r]);
}

PeerLinks::~PeerLinks() = default;

void PeerLinks::add_to(std::vector<pollfd>& waiting) const {
  for (const Peer& peer : peers_) {
    if (peer.link && !peer.is_gone) {
      waiting.push_back({.fd = peer.link.get(), .events = POLLIN, .revents = 0});
    }
  }
}

void PeerLinks::read_news() {
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
  } else if (record.kind == Record::kFailed && is_news(record.calls) && record.rank >= 0 &&
             record.rank < size()) {
    const auto end = std::find(record.cause.begin(), record.cause.end(), '\0');
    failure_ = Failure{record.rank, record.calls, std::string(record.cause.begin(), end)};
  }
}

void PeerLinks::await_last_words(int peer) {
  const Deadline deadline = std::chrono::steady_clock::now() + kLastWordsTimeout;
  read_news();
  while (!failure_ && !is_gone(peer)) {
    pollfd waiting{.fd = peers_[to_size(peer)].link.get(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waiting, 1, poll_timeout(deadline));
    if (ready == 0) return;
    if (ready < 0 && errno != EINTR) return;
    read_news();
  }
}

void PeerLinks::check(std::uint64_t calls) const {
  if (!failure_ || failure_->calls > calls) return;
  const int world = world_ranks_[to_size(failure_->rank)];
  const std::string where =
      world == failure_->rank ? std::string() : fmt::format(" ({} in the whole group)", world);
  throw Error(ErrorCode::PeerFailed,
              fmt::format("rank {}{} failed: {}", failure_->rank, where, failure_->cause));
}

bool PeerLinks::is_gone(int peer) const {
  return peers_[to_size(peer)].is_gone;
}

std::string PeerLinks::parting(int peer) const {
  if (peers_[to_size(peer)].calls_when_left) return "left the group";
  return "its process ended or its connection broke";
}

std::optional<std::uint64_t> PeerLinks::calls_when_left(int peer) const {
  return peers_[to_size(peer)].calls_when_left;
}

void PeerLinks::fail(int rank, std::uint64_t calls, std::string_view cause) noexcept {
  if (!is_news(calls)) return;
  Record record{.kind = Record::kFailed, .rank = rank, .calls = calls};
  const std::size_t count = std::min(cause.size(), record.cause.size() - 1);
  std::copy_n(cause.begin(), count, record.cause.begin());
  tell_all(record);
  try {
    failure_ = Failure{rank, calls, std::string(cause)};
  } catch (const std::bad_alloc&) {
    failure_ = Failure{rank, calls, {}};
  }
}

void PeerLinks::leave(std::uint64_t calls) noexcept {
  tell_all({.kind = Record::kLeft, .rank = rank_, .calls = calls});
}

void PeerLinks::tell_all(const Record& record) noexcept {
  for (const Peer& peer : peers_) {
    // Who does not take it finds out when the connection closes.
    if (peer.link) (void)send_some(peer.link.get(), std::as_bytes(std::span(&record, 1)));
  }
}

}  // namespace penstock::detail
