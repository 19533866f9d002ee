#include "table/sharing/fd_handover.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "core/start_thread.hpp"
#include "penstock/core/log.hpp"
#include "table/sharing/system_error.hpp"

namespace penstock::detail {
namespace {

constexpr std::chrono::milliseconds kPollInterval{50};
constexpr std::chrono::seconds kReceiveDeadline{30};

std::vector<UniqueFd> alone(UniqueFd fd) {
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(fd));
  return fds;
}

std::string random_address() {
  std::array<std::uint64_t, 2> words{};
  if (::getrandom(words.data(), sizeof(words), 0) != static_cast<ssize_t>(sizeof(words))) {
    throw system_error("getrandom");
  }
  return fmt::format("penstock-{:016x}{:016x}", words[0], words[1]);
}

/// An address in the abstract namespace: no path, nothing to unlink.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof(address.sun_path)) {
    throw Error(ErrorCode::Internal, "fd hand-over: the socket's name does not fit");
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

UniqueFd unix_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw system_error("socket");
  return fd;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

/// Whether the process at the other end runs as the same user.
bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == ::geteuid();
}

/// A message of one byte, the number of descriptors beside it, with room for them.
struct FdMessage {
  unsigned char count = 0;
  iovec data{&count, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFdsOfMessage * sizeof(int))> control{};
  msghdr header{};

  FdMessage() {
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  FdMessage(const FdMessage&) = delete;
  FdMessage& operator=(const FdMessage&) = delete;
};

void send_fds(int socket, const std::vector<UniqueFd>& fds) {
  FdMessage message;
  message.count = static_cast<unsigned char>(fds.size());
  const std::size_t bytes = fds.size() * sizeof(int);
  message.header.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* entry = CMSG_FIRSTHDR(&message.header);
  entry->cmsg_level = SOL_SOCKET;
  entry->cmsg_type = SCM_RIGHTS;
  entry->cmsg_len = CMSG_LEN(bytes);
  auto* out = CMSG_DATA(entry);
  for (const UniqueFd& fd : fds) {
    const int number = fd.get();
    std::memcpy(out, &number, sizeof(number));
    out += sizeof(number);
  }
  if (::sendmsg(socket, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    log(LogLevel::Warning, errno_text("fd hand-over: sendmsg"));
  }
}

/// The descriptors of a message. The kernel leaves out those that this process has no room for.
std::vector<UniqueFd> take_fds(const FdMessage& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&message.header); entry != nullptr;
       entry = CMSG_NXTHDR(const_cast<msghdr*>(&message.header), entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(entry) + i * sizeof(number), sizeof(number));
      fds.emplace_back(number);
    }
  }
  if (!fds.empty() && fds.size() == message.count) return fds;
  if (fds.empty()) {
    throw Error(ErrorCode::System, "fd hand-over: the answer holds no descriptor");
  }
  throw Error(
      ErrorCode::System,
      fmt::format("fd hand-over: found {} of {} descriptors; needed: a higher limit of open "
                  "files (ulimit -n)",
                  fds.size(), message.count));
}

void check_wait(const StopFlag& stop, std::chrono::steady_clock::time_point deadline) {
  stop.check();
  if (std::chrono::steady_clock::now() > deadline) {
    throw Error(ErrorCode::Timeout, "fd hand-over: no answer from the creator");
  }
}

/// Connects to the server, and waits while more askers queue than the system lets.
void connect(int socket, const std::string& address, const StopFlag& stop,
             std::chrono::steady_clock::time_point deadline) {
  const auto [name, size] = abstract_address(address);
  while (::connect(socket, generic(name), size) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      throw Error(ErrorCode::System, errno_text("fd hand-over: connect") +
                                         "; needed: ranks of one node in one network namespace");
    }
    check_wait(stop, deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

FdServer::FdServer(UniqueFd fd) : FdServer(alone(std::move(fd))) {}

FdServer::FdServer(std::vector<UniqueFd> fds)
    : fds_(std::move(fds)),
      address_(random_address()),
      listener_(unix_socket()),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      spare_(::fcntl(wake_.get(), F_DUPFD_CLOEXEC, 0)) {
  if (fds_.empty() || fds_.size() > kMaxFdsOfMessage) {
    throw Error(ErrorCode::Internal,
                fmt::format("fd hand-over: found {} descriptors, needed: 1 to {}", fds_.size(),
                            kMaxFdsOfMessage));
  }
  if (!wake_ || !spare_) throw system_error("eventfd");
  const auto [address, size] = abstract_address(address_);
  if (::bind(listener_.get(), generic(address), size) != 0) throw system_error("bind");
  if (::listen(listener_.get(), SOMAXCONN) != 0) throw system_error("listen");
  thread_ = start_thread([this] { serve(); });
}

FdServer::~FdServer() {
  const std::uint64_t one = 1;
  // An eventfd takes this write unless its counter is full, which one write cannot make it.
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

/// The next asker; empty if there is none. The place that `spare_` keeps is for one that comes when
/// this process has no other left: it must not wait for what nobody will give back.
UniqueFd FdServer::accept() {
  UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (peer || (errno != EMFILE && errno != ENFILE)) return peer;
  spare_.reset();
  return UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
}

void FdServer::serve() {
  std::array<pollfd, 2> sources{pollfd{listener_.get(), POLLIN, 0}, pollfd{wake_.get(), POLLIN, 0}};
  for (;;) {
    if (::poll(sources.data(), sources.size(), -1) < 0 && errno != EINTR) return;
    if (sources[1].revents != 0) return;
    UniqueFd peer = accept();
    if (!peer) {
      // Out of descriptors: wait, so that the thread does not spin while the queue stays readable.
      if (errno == EMFILE || errno == ENFILE) ::poll(&sources[1], 1, kPollInterval.count());
      continue;
    }
    if (is_same_user(peer.get())) send_fds(peer.get(), fds_);
    peer.reset();
    if (!spare_) spare_ = UniqueFd(::fcntl(wake_.get(), F_DUPFD_CLOEXEC, 0));
  }
}

std::vector<UniqueFd> receive_fds(const std::string& address, const StopFlag& stop) {
  const UniqueFd socket = unix_socket();
  const auto deadline = std::chrono::steady_clock::now() + kReceiveDeadline;
  connect(socket.get(), address, stop, deadline);
  if (!is_same_user(socket.get())) {
    throw Error(ErrorCode::System, "fd hand-over: the creator belongs to another user");
  }
  pollfd source{socket.get(), POLLIN, 0};
  while (::poll(&source, 1, static_cast<int>(kPollInterval.count())) <= 0) {
    check_wait(stop, deadline);
  }
  FdMessage message;
  if (::recvmsg(socket.get(), &message.header, MSG_CMSG_CLOEXEC) != 1) {
    throw system_error("fd hand-over: recvmsg");
  }
  return take_fds(message);
}

UniqueFd receive_fd(const std::string& address, const StopFlag& stop) {
  auto fds = receive_fds(address, stop);
  if (fds.size() == 1) return std::move(fds.front());
  throw Error(ErrorCode::System,
              fmt::format("fd hand-over: found {} descriptors, needed: 1", fds.size()));
}

}  // namespace penstock::detail
