#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/startup.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

using Bytes = StartupChannel::Bytes;

constexpr std::size_t kTokenBytes = 32;

/// The first words on a connection: who calls, and that it belongs to this group.
struct Hello {
  std::array<char, kTokenBytes> token{};
  std::int32_t place = 0;
  std::int32_t is_data = 0;
};

struct Caller {
  UniqueFd socket;
  Bytes received;
};

/// Accepts the connections of the members that come later in the group.
class Reception {
 public:
  Reception(StartupChannel& channel, const Listener& listener, std::string token, Mesh& mesh)
      : channel_(channel),
        listener_(listener),
        token_(std::move(token)),
        mesh_(mesh) {}

  void receive(std::size_t expected, Deadline deadline) {
    while (num_accepted_ < expected) {
      // Before the wait: what has been heard of already wakes nobody any more.
      channel_.check();
      wait(deadline);
      while (UniqueFd socket = listener_.accept()) callers_.push_back({std::move(socket), {}});
      for (Caller& caller : callers_) hear(caller);
      std::erase_if(callers_, [](const Caller& caller) { return !caller.socket; });
    }
  }

 private:
  void wait(Deadline deadline) {
    std::vector<pollfd> waiting{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Caller& caller : callers_) {
      waiting.push_back({.fd = caller.socket.get(), .events = POLLIN, .revents = 0});
    }
    channel_.add_to(waiting);
    const int ready = ::poll(waiting.data(), waiting.size(), poll_timeout(deadline));
    if (ready == 0) {
      throw Error(ErrorCode::PeerFailed, fmt::format("start-up: rank {} waited for connections in "
                                                     "vain until the deadline",
                                                     channel_.rank()));
    }
  }

  void hear(Caller& caller) {
    const std::size_t have = caller.received.size();
    caller.received.resize(sizeof(Hello));
    const Transfer transfer =
        receive_some(caller.socket.get(), std::span(caller.received).subspan(have));
    caller.received.resize(have + transfer.bytes);
    if (transfer.is_closed) return caller.socket.reset();
    if (caller.received.size() < sizeof(Hello)) return;
    Hello hello;
    std::memcpy(&hello, caller.received.data(), sizeof(hello));
    seat(hello, std::move(caller.socket));
  }

  /// Whoever does not know the token, or comes twice, is sent away.
  void seat(const Hello& hello, UniqueFd socket) {
    auto& seats = hello.is_data != 0 ? mesh_.data : mesh_.links;
    const bool is_known = std::string_view(hello.token.data(), kTokenBytes) == token_;
    const auto place = static_cast<std::size_t>(hello.place);
    if (!is_known || hello.place < 0 || place >= seats.size() || seats[place]) return;
    seats[place] = std::move(socket);
    ++num_accepted_;
  }

  StartupChannel& channel_;
  const Listener& listener_;
  const std::string token_;
  Mesh& mesh_;
  std::vector<Caller> callers_;
  std::size_t num_accepted_ = 0;
};

/// Where a member listens and, from the first one, the token of the group.
Bytes make_card(const Listener& listener) {
  const std::string text = random_token() + listener.address().text();
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string text_of(const Bytes& card) {
  std::string text(reinterpret_cast<const char*>(card.data()), card.size());
  if (text.size() <= kTokenBytes) {
    throw Error(ErrorCode::PeerFailed, "start-up: a rank sent a malformed address");
  }
  return text;
}

UniqueFd call_member(StartupChannel& channel, const std::string& address, const Hello& hello,
                     Deadline deadline) {
  UniqueFd socket = connect_to(SocketAddress::parse(address), deadline, [&] { channel.check(); });
  // A fresh socket takes these few bytes at once; a broken one shows at the other end.
  (void)send_some(socket.get(), std::as_bytes(std::span(&hello, 1)));
  return socket;
}

}  // namespace

Mesh connect_mesh(StartupChannel& channel, std::span<const int> members, MeshKind kind,
                  const CommOptions& options) {
  const Deadline deadline = std::chrono::steady_clock::now() + options.start_deadline;
  const auto found = std::ranges::find(members, channel.rank());
  const bool is_member = found != members.end();
  const auto place = static_cast<std::size_t>(found - members.begin());

  const Listener listener = is_member ? Listener(channel.local().sibling()) : Listener();
  const auto cards = channel.all_gather(is_member ? make_card(listener) : Bytes());
  Mesh mesh;
  if (is_member) {
    mesh.links.resize(members.size());
    if (kind == MeshKind::LinksAndData) mesh.data.resize(members.size());
    const auto card_of = [&](std::size_t member) {
      return text_of(cards[static_cast<std::size_t>(members[member])]);
    };
    const std::string token = card_of(0).substr(0, kTokenBytes);
    Hello hello{.place = static_cast<std::int32_t>(place)};
    std::ranges::copy(token, hello.token.begin());
    for (std::size_t p = 0; p < place; ++p) {
      const std::string address = card_of(p).substr(kTokenBytes);
      hello.is_data = 0;
      mesh.links[p] = call_member(channel, address, hello, deadline);
      if (kind == MeshKind::LinksOnly) continue;
      hello.is_data = 1;
      mesh.data[p] = call_member(channel, address, hello, deadline);
    }
    const std::size_t later = members.size() - 1 - place;
    Reception(channel, listener, token, mesh)
        .receive(kind == MeshKind::LinksAndData ? 2 * later : later, deadline);
  }
  // Nobody goes on before everybody is connected: from here on each hears of the others' end.
  channel.all_gather({});
  return mesh;
}

}  // namespace penstock::detail
