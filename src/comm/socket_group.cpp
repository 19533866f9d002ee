#include "penstock/comm/socket_group.hpp"

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/linked_group.hpp"
#include "comm/socket.hpp"
#include "comm/startup.hpp"
#include "core/to_size.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::to_size;

using detail::Deadline;
using detail::LinkedGroup;
using detail::Transfer;
using Bytes = CommCallbacks::Bytes;

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

/// Sends over the data connections of a mesh.
class SocketGroup final : public LinkedGroup {
 public:
  SocketGroup(detail::Mesh mesh, int rank, std::vector<int> world_ranks,
              const detail::SocketAddress& local, std::shared_ptr<detail::GroupFamily> family,
              const CommOptions& options)
      : LinkedGroup(rank, std::move(mesh.links), std::move(world_ranks), local, std::move(family),
                    options),
        data_(std::move(mesh.data)) {}

 private:
  std::vector<Bytes> transfer(const Outgoing& out) override {
    const Deadline deadline = std::chrono::steady_clock::now() + options().deadline;
    std::vector<Lane> lanes(to_size(size()));
    for (std::size_t r = 0; r < lanes.size(); ++r) {
      lanes[r].out = out[r];
      lanes[r].out_header = {.call = num_calls(), .bytes = out[r].size()};
    }
    while (advance(lanes)) wait(lanes, deadline);
    std::vector<Bytes> in;
    for (Lane& lane : lanes) in.push_back(std::move(lane.in));
    return in;
  }

  detail::MeshKind mesh_kind() const override { return detail::MeshKind::LinksAndData; }
  void prepare_split(std::size_t /*num_parts*/) override {}
  std::shared_ptr<LinkedGroup> make_part(detail::Mesh mesh, int /*part*/, int place,
                                         std::vector<int> world_ranks) override {
    return std::make_shared<SocketGroup>(std::move(mesh), place, std::move(world_ranks), local(),
                                         family(), options());
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
    links().add_to(waiting);
    const int ready = ::poll(waiting.data(), waiting.size(), detail::poll_timeout(deadline));
    check();
    if (ready == 0) give_up(find_late(lanes));
  }

  /// A rank from which nothing came is to blame before one that is slow to take.
  int find_late(const std::vector<Lane>& lanes) const {
    int late = rank();
    for (int r = size() - 1; r >= 0; --r) {
      if (r != rank() && !lanes[to_size(r)].is_sent()) late = r;
    }
    for (int r = size() - 1; r >= 0; --r) {
      if (r != rank() && !lanes[to_size(r)].is_received()) late = r;
    }
    return late;
  }

  std::vector<detail::UniqueFd> data_;
};

std::unique_ptr<Communicator> connect_group(detail::StartupChannel& channel,
                                            const CommOptions& options) {
  std::vector<int> ranks(to_size(channel.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  detail::Mesh mesh = detail::connect_mesh(channel, ranks, detail::MeshKind::LinksAndData, options);
  auto family = std::make_shared<detail::GroupFamily>();
  auto group = std::make_shared<SocketGroup>(std::move(mesh), channel.rank(), std::move(ranks),
                                             channel.local(), family, options);
  family->add(group);
  return make_callback_communicator(channel.rank(), channel.size(), detail::make_callbacks(group));
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
