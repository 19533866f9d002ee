#include "comm/socket.hpp"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>

#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
// Between two looks at what has become of the others.
constexpr std::chrono::milliseconds kLongestPause{50};
constexpr std::size_t kMaxUnixName = sizeof(sockaddr_un::sun_path) - 1;

std::string reason(int code) {
  return std::system_category().message(code);
}

Error system_error(const std::string& what) {
  return {ErrorCode::System, fmt::format("{}: {}", what, reason(errno))};
}

std::uint16_t parse_port(const std::string& text, std::string_view port) {
  unsigned value = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), value);
  expects(error == std::errc() && end == port.data() + port.size() && value <= 0xFFFF,
          fmt::format("address {}: the port must be a number from 0 to 65535", text));
  return static_cast<std::uint16_t>(value);
}

void set_port(sockaddr_storage& storage, std::uint16_t port) {
  if (storage.ss_family == AF_INET) reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  }
}

/// Only the owner of this process may talk to it over AF_UNIX.
bool is_same_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         peer.uid == ::geteuid();
}

void prepare(int socket, int family) {
  if (family == AF_UNIX) return;
  const int on = 1;
  // Small messages must not wait for more. Only speed depends on it.
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/// Whether a failed connect may succeed later: nobody listens yet, or too many wait.
bool may_try_again(int code) {
  return code == ECONNREFUSED || code == ENOENT || code == EAGAIN || code == EINTR ||
         code == ETIMEDOUT || code == ECONNRESET || code == EHOSTUNREACH;
}

/// Waits for a connection under way; looks out by `check` meanwhile. Gives 0, ETIMEDOUT or an error.
int await_connection(int socket, Deadline deadline, const std::function<void()>& check) {
  for (;;) {
    pollfd waiting{.fd = socket, .events = POLLOUT, .revents = 0};
    const Deadline next = std::min(deadline, std::chrono::steady_clock::now() + kLongestPause);
    const int ready = ::poll(&waiting, 1, poll_timeout(next));
    if (ready > 0) return 0;
    if (ready < 0) return errno;
    if (std::chrono::steady_clock::now() >= deadline) return ETIMEDOUT;
    if (check) check();
  }
}

/// One attempt. Gives 0 or the error.
int try_connect(int socket, const SocketAddress& address, Deadline deadline,
                const std::function<void()>& check) {
  if (::connect(socket, address.get(), address.bytes()) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (const int code = await_connection(socket, deadline, check); code != 0) return code;
  int code = 0;
  socklen_t bytes = sizeof(code);
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &bytes) != 0) return errno;
  return code;
}

Transfer transferred(ssize_t count) {
  if (count > 0) return {.bytes = static_cast<std::size_t>(count)};
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  return {.is_closed = true};
}

}  // namespace

int poll_timeout(Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  constexpr std::int64_t kOneDay = 86'400'000;
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, kOneDay));
}

SocketAddress SocketAddress::parse(const std::string& text) {
  SocketAddress result;
  if (text.starts_with(kUnixPrefix)) {
    std::string name = text.substr(kUnixPrefix.size());
    expects(name.size() >= 2 && name.size() <= kMaxUnixName && (name[0] == '@' || name[0] == '/'),
            fmt::format("address {}: needs unix:@name or unix:/path of at most {} bytes", text,
                        kMaxUnixName));
    auto& address = reinterpret_cast<sockaddr_un&>(result.storage_);
    address.sun_family = AF_UNIX;
    if (name[0] == '@') name[0] = '\0';
    std::memcpy(address.sun_path, name.data(), name.size());
    const std::size_t terminator = name[0] == '\0' ? 0 : 1;
    result.bytes_ =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + terminator);
    return result;
  }
  const std::size_t colon = text.rfind(':');
  expects(colon != std::string::npos && colon > 0,
          fmt::format("address {}: needs host:port, unix:@name or unix:/path", text));
  const std::uint16_t port = parse_port(text, std::string_view(text).substr(colon + 1));
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) {
    throw Error(ErrorCode::NotFound,
                fmt::format("address {}: no host {}: {}", text, host, ::gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::memcpy(&result.storage_, found->ai_addr, found->ai_addrlen);
  result.bytes_ = found->ai_addrlen;
  set_port(result.storage_, port);
  return result;
}

SocketAddress SocketAddress::of(int socket) {
  SocketAddress result;
  result.bytes_ = sizeof(result.storage_);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&result.storage_), &result.bytes_) != 0) {
    throw system_error("getsockname");
  }
  return result;
}

std::string SocketAddress::text() const {
  if (family() == AF_UNIX) {
    const auto& address = reinterpret_cast<const sockaddr_un&>(storage_);
    std::string name(address.sun_path, bytes_ - offsetof(sockaddr_un, sun_path));
    if (name.empty()) return "unix:";
    if (name[0] == '\0') name[0] = '@';
    return fmt::format("{}{}", kUnixPrefix, name.c_str());
  }
  std::array<char, INET6_ADDRSTRLEN> host{};
  if (family() == AF_INET) {
    const auto& address = reinterpret_cast<const sockaddr_in&>(storage_);
    ::inet_ntop(AF_INET, &address.sin_addr, host.data(), host.size());
    return fmt::format("{}:{}", host.data(), ntohs(address.sin_port));
  }
  const auto& address = reinterpret_cast<const sockaddr_in6&>(storage_);
  ::inet_ntop(AF_INET6, &address.sin6_addr, host.data(), host.size());
  return fmt::format("[{}]:{}", host.data(), ntohs(address.sin6_port));
}

SocketAddress SocketAddress::sibling() const {
  if (family() == AF_UNIX) {
    const std::string mine = path();
    if (mine.empty()) return parse("unix:@penstock-" + random_token());
    return parse(fmt::format("unix:{}/penstock-{}", mine.substr(0, mine.rfind('/')),
                             random_token().substr(0, 16)));
  }
  SocketAddress result = *this;
  set_port(result.storage_, 0);
  return result;
}

std::string SocketAddress::path() const {
  if (family() != AF_UNIX) return {};
  const std::string all = text();
  return all.size() > kUnixPrefix.size() && all[kUnixPrefix.size()] == '/'
             ? all.substr(kUnixPrefix.size())
             : std::string();
}

Listener::Listener(const SocketAddress& address)
    : fd_(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!fd_) throw system_error("socket");
  if (address.family() != AF_UNIX) {
    const int on = 1;
    // A job that restarts must not wait for the connections of the last one to be forgotten.
    (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (::bind(fd_.get(), address.get(), address.bytes()) != 0 ||
      ::listen(fd_.get(), SOMAXCONN) != 0) {
    throw system_error(fmt::format("cannot listen at {}", address.text()));
  }
}

Listener::~Listener() {
  if (!fd_) return;
  try {
    const std::string path = address().path();
    if (!path.empty()) ::unlink(path.c_str());
  } catch (const std::exception&) {
    return;  // nothing to remove, or no memory to find out
  }
}

UniqueFd Listener::accept() const {
  for (;;) {
    UniqueFd socket(::accept4(get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    // Whoever knocks stays at the door, so that to try again would be to try for ever.
    if (!socket) throw system_error("cannot take a connection");
    const int family = SocketAddress::of(socket.get()).family();
    if (family == AF_UNIX && !is_same_user(socket.get())) continue;
    prepare(socket.get(), family);
    return socket;
  }
}

UniqueFd connect_to(const SocketAddress& address, Deadline deadline,
                    const std::function<void()>& check) {
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    if (check) check();
    UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) throw system_error("socket");
    const int code = try_connect(socket.get(), address, deadline, check);
    if (code == 0) {
      if (address.family() == AF_UNIX && !is_same_user(socket.get())) {
        throw Error(ErrorCode::System, fmt::format("{} belongs to another user", address.text()));
      }
      prepare(socket.get(), address.family());
      return socket;
    }
    if (!may_try_again(code)) {
      throw Error(ErrorCode::System,
                  fmt::format("cannot connect to {}: {}", address.text(), reason(code)));
    }
    if (std::chrono::steady_clock::now() + pause >= deadline) {
      throw Error(ErrorCode::Timeout,
                  fmt::format("nobody listens at {}: {}", address.text(), reason(code)));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

Transfer send_some(int socket, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  return transferred(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

Transfer send_some(int socket, std::span<const std::byte> first,
                   std::span<const std::byte> second) {
  if (first.empty()) return send_some(socket, second);
  // sendmsg only reads what the vector points to.
  std::array<iovec, 2> parts{{{const_cast<std::byte*>(first.data()), first.size()},
                              {const_cast<std::byte*>(second.data()), second.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return transferred(::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

Transfer receive_some(int socket, std::span<std::byte> bytes) {
  if (bytes.empty()) return {};
  return transferred(::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT));
}

std::string random_token() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;
  std::string token;
  for (int i = 0; i < 32; ++i) token += kDigits[random() % kDigits.size()];
  return token;
}

}  // namespace penstock::detail
