#include "penstock/comm/socket_group.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/copy_bytes.hpp"
#include "comm/peer_links.hpp"
#include "comm/socket.hpp"
#include "comm/startup.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::Deadline;
using detail::PeerLinks;
using detail::Transfer;
using Bytes = CommCallbacks::Bytes;

std::size_t to_size(int value) {
  return static_cast<std::size_t>(value);
}

/// Before the bytes of every message.
struct FrameHeader {
  std::uint64_t call = 0;  ///< Counts the calls of the group: equal at both ends.
  std::uint64_t bytes = 0;
};

/// One call's traffic with one peer.
struct Lane {
  FrameHeader out_header;
  std::span<const std::byte> out;
  std::size_t sent = 0;  ///< Of header and bytes together.

  FrameHeader in_header;
  Bytes in;
  std::size_t received = 0;  ///< Of header and bytes together.

  bool is_sent() const { return sent == sizeof(FrameHeader) + out.size(); }
  bool is_received() const {
    return received >= sizeof(FrameHeader) && received == sizeof(FrameHeader) + in.size();
  }
  bool is_done() const { return is_sent() && is_received(); }
};

/// Sends what the socket takes. False if the peer is gone.
bool send_lane(int socket, Lane& lane) {
  while (!lane.is_sent()) {
    const auto header = std::as_bytes(std::span(&lane.out_header, 1));
    const std::size_t header_sent = std::min(lane.sent, sizeof(FrameHeader));
    const Transfer transfer = detail::send_some(socket, header.subspan(header_sent),
                                                lane.out.subspan(lane.sent - header_sent));
    if (transfer.is_closed) return false;
    if (transfer.bytes == 0) return true;
    lane.sent += transfer.bytes;
  }
  return true;
}

/// Takes what has arrived, and not a byte of the next call. False if the peer is gone.
bool receive_lane(int socket, Lane& lane) {
  while (!lane.is_received()) {
    const bool has_header = lane.received >= sizeof(FrameHeader);
    const auto rest =
        has_header ? std::span(lane.in).subspan(lane.received - sizeof(FrameHeader))
                   : std::as_writable_bytes(std::span(&lane.in_header, 1)).subspan(lane.received);
    const Transfer transfer = detail::receive_some(socket, rest);
    if (transfer.is_closed) return false;
    if (transfer.bytes == 0) return true;
    lane.received += transfer.bytes;
    if (!has_header && lane.received == sizeof(FrameHeader)) {
      if (lane.in_header.call != lane.out_header.call) return false;
      lane.in.resize(lane.in_header.bytes);
    }
  }
  return true;
}

class SocketGroup;

/// The groups of one rank that were split off one another. A rank that fails in one of them has
/// failed in all, and whoever hears of it first must not be taken for the cause.
class Family {
 public:
  void add(const std::shared_ptr<SocketGroup>& group);
  void fail(int world_rank, const std::string& cause) noexcept;

  /// "rank 3 of the whole group failed: ...", or empty.
  std::string first_failure() const noexcept {
    const std::lock_guard lock(mutex_);
    return first_failure_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<SocketGroup>> groups_;
  std::string first_failure_;
};

/// One rank's connections. Moves byte strings; what they mean is the callbacks engine's business.
class SocketGroup {
 public:
  SocketGroup(detail::Mesh mesh, int rank, std::vector<int> world_ranks,
              detail::SocketAddress local, std::shared_ptr<Family> family,
              const CommOptions& options)
      : family_(std::move(family)),
        links_(rank, std::move(mesh.links), std::move(world_ranks)),
        data_(std::move(mesh.data)),
        local_(local),
        options_(options) {}
  ~SocketGroup() { links_.leave(num_calls_, family_->first_failure()); }
  SocketGroup(const SocketGroup&) = delete;
  SocketGroup& operator=(const SocketGroup&) = delete;

  int rank() const { return links_.rank(); }
  int size() const { return links_.size(); }
  const detail::SocketAddress& local() const { return local_; }
  const CommOptions& options() const { return options_; }
  PeerLinks& links() { return links_; }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) {
    return exchange(std::vector<std::span<const std::byte>>(to_size(size()), mine));
  }

  std::vector<Bytes> all_to_all(const std::vector<Bytes>& for_each_rank) {
    return exchange({for_each_rank.begin(), for_each_rank.end()});
  }

  void abort(std::string_view cause) noexcept {
    fail({.rank = rank(), .calls = num_calls_, .is_departure = false, .cause = std::string(cause)});
  }

  /// World rank `world_rank` failed in another group; nothing if it is not of this one.
  void hear_of(int world_rank, const std::string& cause) noexcept {
    const auto& ranks = links_.world_ranks();
    const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
    if (found == ranks.end()) return;
    links_.fail({.rank = static_cast<int>(found - ranks.begin()),
                 .calls = num_calls_,
                 .is_departure = false,
                 .cause = cause});
  }

  /// Throws PeerFailed if a rank is known not to finish the call under way.
  void check() {
    const auto failure = links_.failure(num_calls_);
    if (!failure) return;
    fail(*failure);
    links_.raise(*failure);
  }

  /// Throws PeerFailed: the connection to `peer` has closed, and the call under way needs it.
  [[noreturn]] void lose(int peer) {
    links_.await_last_words(peer);
    const auto parting = links_.parting(peer, num_calls_);
    links_.fail(parting);
    check();
    links_.raise(parting);
  }

  /// The connections of the group `mine` of `groups`, lists of ranks of this one; nothing for -1.
  std::shared_ptr<SocketGroup> split(const std::vector<std::vector<int>>& groups, int mine);

 private:
  /// Sends out[r] to rank r and gives what came from it. Waits for both at once, so that ranks that
  /// all send before they receive do not block each other.
  std::vector<Bytes> exchange(const std::vector<std::span<const std::byte>>& out) {
    try {
      return exchange_or_throw(out);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      abort(error.what());
      throw;
    }
  }

  std::vector<Bytes> exchange_or_throw(const std::vector<std::span<const std::byte>>& out) {
    const Deadline deadline = std::chrono::steady_clock::now() + options_.deadline;
    links_.read_news();
    check();
    std::vector<Lane> lanes(to_size(size()));
    for (std::size_t r = 0; r < lanes.size(); ++r) {
      lanes[r].out = out[r];
      lanes[r].out_header = {.call = num_calls_, .bytes = out[r].size()};
    }
    while (advance(lanes)) wait(lanes, deadline);
    ++num_calls_;
    std::vector<Bytes> in;
    for (Lane& lane : lanes) in.push_back(std::move(lane.in));
    in[to_size(rank())].assign(out[to_size(rank())].begin(), out[to_size(rank())].end());
    return in;
  }

  /// Moves what can be moved. False when nothing is left to do.
  bool advance(std::vector<Lane>& lanes) {
    bool is_waiting = false;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      Lane& lane = lanes[to_size(r)];
      const int socket = data_[to_size(r)].get();
      const bool can_send = send_lane(socket, lane);
      // Also from a peer that takes nothing more: it may have left after its part of the call.
      if (!receive_lane(socket, lane) || !can_send) lose(r);
      is_waiting = is_waiting || !lane.is_done();
    }
    return is_waiting;
  }

  /// Tells the others, in this group and, unless `peer` merely left it, in all of the family.
  void fail(const PeerLinks::Failure& failure) noexcept {
    links_.fail(failure);
    if (failure.is_departure) return;
    family_->fail(links_.world_ranks()[to_size(failure.rank)], failure.cause);
  }

  void wait(const std::vector<Lane>& lanes, Deadline deadline) {
    std::vector<pollfd> waiting;
    for (int r = 0; r < size(); ++r) {
      const Lane& lane = lanes[to_size(r)];
      if (r == rank() || lane.is_done()) continue;
      const int events = (lane.is_received() ? 0 : POLLIN) | (lane.is_sent() ? 0 : POLLOUT);
      waiting.push_back({.fd = data_[to_size(r)].get(),
                         .events = static_cast<std::int16_t>(events),
                         .revents = 0});
    }
    links_.add_to(waiting);
    const int ready = ::poll(waiting.data(), waiting.size(), detail::poll_timeout(deadline));
    links_.read_news();
    check();
    if (ready == 0) give_up(lanes);
  }

  /// The deadline has passed. A rank from which nothing came is to blame before one that is slow.
  void give_up(const std::vector<Lane>& lanes) {
    const auto first = [&](const auto& is_late) {
      for (int r = 0; r < size(); ++r) {
        if (r != rank() && is_late(lanes[to_size(r)])) return std::optional(r);
      }
      return std::optional<int>();
    };
    auto late = first([](const Lane& lane) { return !lane.is_received(); });
    if (!late) late = first([](const Lane& lane) { return !lane.is_sent(); });
    fail({.rank = late.value_or(rank()),
          .calls = num_calls_,
          .is_departure = false,
          .cause = fmt::format("did not answer within {} ms", options_.deadline.count())});
    check();
  }

  const std::shared_ptr<Family> family_;
  PeerLinks links_;
  std::vector<detail::UniqueFd> data_;
  const detail::SocketAddress local_;
  const CommOptions options_;
  std::atomic<std::uint64_t> num_calls_ = 0;  ///< Finished ones.
};

void Family::add(const std::shared_ptr<SocketGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
  groups_.push_back(group);
}

void Family::fail(int world_rank, const std::string& cause) noexcept {
  std::vector<std::shared_ptr<SocketGroup>> groups;  // released after the lock
  const std::lock_guard lock(mutex_);
  if (first_failure_.empty()) {
    first_failure_ = fmt::format("rank {} of the whole group failed: {}", world_rank, cause);
  }
  for (const auto& weak : groups_) {
    if (auto group = weak.lock()) groups.push_back(std::move(group));
  }
  for (const auto& group : groups) group->hear_of(world_rank, cause);
}

/// Lets the ranks of a group connect once more, for a part of it.
class GroupChannel final : public detail::StartupChannel {
 public:
  explicit GroupChannel(SocketGroup& group) : group_(group) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  detail::SocketAddress local() const override { return group_.local(); }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override {
    return group_.all_gather(mine);
  }

  void add_to(std::vector<pollfd>& waiting) const override { group_.links().add_to(waiting); }

  void check() override {
    group_.links().read_news();
    group_.check();
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && group_.links().is_gone(r)) group_.lose(r);
    }
  }

 private:
  SocketGroup& group_;
};

std::shared_ptr<SocketGroup> SocketGroup::split(const std::vector<std::vector<int>>& groups,
                                                int mine) {
  const std::vector<int> members = mine < 0 ? std::vector<int>() : groups[to_size(mine)];
  GroupChannel channel(*this);
  try {
    detail::Mesh mesh =
        detail::connect_mesh(channel, members, detail::MeshKind::LinksAndData, options_);
    if (mine < 0) return nullptr;
    std::vector<int> world_ranks;
    for (const int r : members) world_ranks.push_back(links_.world_ranks()[to_size(r)]);
    const auto place = std::find(members.begin(), members.end(), rank()) - members.begin();
    auto part = std::make_shared<SocketGroup>(std::move(mesh), static_cast<int>(place),
                                              std::move(world_ranks), local_, family_, options_);
    family_->add(part);
    return part;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::PeerFailed) abort(error.what());
    throw;
  } catch (const std::exception& error) {
    abort(error.what());
    throw;
  }
}

CommCallbacks make_callbacks(const std::shared_ptr<SocketGroup>& group) {
  return {
      .all_gather = [group](std::span<const std::byte> mine) { return group->all_gather(mine); },
      .all_to_all = [group](const std::vector<Bytes>& blocks) { return group->all_to_all(blocks); },
      .barrier = {},
      .abort = [group](std::string_view cause) { group->abort(cause); },
      .split =
          [group](const std::vector<std::vector<int>>& groups, int mine) {
            const auto part = group->split(groups, mine);
            return part ? make_callbacks(part) : CommCallbacks{};
          },
  };
}

std::unique_ptr<Communicator> connect_group(detail::StartupChannel& channel,
                                            const CommOptions& options) {
  std::vector<int> ranks(to_size(channel.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  detail::Mesh mesh = detail::connect_mesh(channel, ranks, detail::MeshKind::LinksAndData, options);
  auto family = std::make_shared<Family>();
  auto group = std::make_shared<SocketGroup>(std::move(mesh), channel.rank(), std::move(ranks),
                                             channel.local(), family, options);
  family->add(group);
  return make_callback_communicator(channel.rank(), channel.size(), make_callbacks(group));
}

}  // namespace

struct SocketGroupHost::State {
  detail::Listener listener;
};

SocketGroupHost::SocketGroupHost(const std::string& address)
    : state_(
          std::make_unique<State>(State{detail::Listener(detail::SocketAddress::parse(address))})) {
}
SocketGroupHost::~SocketGroupHost() = default;
SocketGroupHost::SocketGroupHost(SocketGroupHost&&) noexcept = default;
SocketGroupHost& SocketGroupHost::operator=(SocketGroupHost&&) noexcept = default;

std::string SocketGroupHost::address() const {
  expects(state_ != nullptr, "SocketGroupHost::address: the host is used up");
  return state_->listener.address().text();
}

std::unique_ptr<Communicator> SocketGroupHost::make_communicator(int size,
                                                                 const CommOptions& options) {
  expects(state_ != nullptr, "SocketGroupHost::make_communicator: the host is used up");
  expects(size >= 1, fmt::format("SocketGroupHost: size is {}, must be at least 1", size));
  const auto state = std::move(state_);
  const auto star = detail::open_star_as_hub(size, std::move(state->listener), options);
  return connect_group(*star, options);
}

std::unique_ptr<Communicator> join_socket_group(int rank, int size, const std::string& address,
                                                const CommOptions& options) {
  expects(size >= 1 && rank >= 0 && rank < size,
          fmt::format("join_socket_group: rank {} of {}, must be in [0, size)", rank, size));
  if (rank == 0) return SocketGroupHost(address).make_communicator(size, options);
  const auto star =
      detail::open_star_as_leaf(rank, size, detail::SocketAddress::parse(address), options);
  return connect_group(*star, options);
}

}  // namespace penstock
