#include "topology/shared_memory_probe.hpp"

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "core/unique_fd.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

std::string random_name() {
  std::random_device random;
  std::string name = "penstock-probe-";
  constexpr std::array kDigits = {'0', '1', '2', '3', '4', '5', '6', '7',
                                  '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'};
  for (int i = 0; i < 32; ++i) name += kDigits.at(random() % kDigits.size());
  return name;
}

/// An address in the abstract namespace, which belongs to the network namespace and leaves no file.
struct Address {
  sockaddr_un address{};
  socklen_t bytes = 0;

  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t count = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), count);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

/// What cannot be had for want of descriptors or memory says nothing of who shares memory with whom:
/// a rank that took it for an answer would have a node, and tables, of its own.
UniqueFd unless_exhausted(int fd, const char* what) {
  const bool is_exhausted =
      fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS);
  if (!is_exhausted) return UniqueFd(fd);
  throw Error(ErrorCode::System,
              fmt::format("find_nodes: {}: {}", what, std::system_category().message(errno)));
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         peer.uid == ::geteuid();
}

UniqueFd open_socket() {
  return unless_exhausted(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
                          "socket");
}

using Control = std::array<char, CMSG_SPACE(sizeof(int))>;

void send_descriptor(int socket, int fd) {
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  // A peer that has gone is found out by what does not arrive.
  (void)::sendmsg(socket, &message, MSG_NOSIGNAL);
}

UniqueFd receive_descriptor(int socket) {
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) Control control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return {};
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    // Without room for a descriptor the kernel drops it and says no more than this.
    throw Error(ErrorCode::System,
                "find_nodes: a descriptor was sent and dropped, as too many are open");
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return UniqueFd(fd);
}

}  // namespace

struct SharedMemoryProbe::State {
  std::string name;
  UniqueFd listener;
  UniqueFd memory;  ///< Holds `name`.
  std::vector<std::string> peer_names;
  std::vector<UniqueFd> peers;
};

SharedMemoryProbe::SharedMemoryProbe() : state_(std::make_unique<State>()) {
  const std::string name = random_name();
  const Address address(name);
  UniqueFd listener = open_socket();
  UniqueFd memory = unless_exhausted(::memfd_create("penstock-probe", MFD_CLOEXEC), "memfd_create");
  if (!listener || !memory) return;
  if (::bind(listener.get(), address.get(), address.bytes) != 0) return;
  if (::listen(listener.get(), SOMAXCONN) != 0) return;
  const ssize_t written = ::pwrite(memory.get(), name.data(), name.size(), 0);
  if (written < 0 && errno == EFBIG) {
    throw Error(ErrorCode::System,
                "find_nodes: the file size limit (ulimit -f) leaves no room for "
                "memory that is shared");
  }
  if (std::cmp_not_equal(written, name.size())) return;
  state_->name = name;
  state_->listener = std::move(listener);
  state_->memory = std::move(memory);
}

SharedMemoryProbe::~SharedMemoryProbe() = default;

const std::string& SharedMemoryProbe::name() const {
  return state_->name;
}

void SharedMemoryProbe::connect_to(const std::vector<std::string>& names) {
  state_->peer_names = names;
  for (const std::string& name : names) {
    UniqueFd socket = open_socket();
    const Address address(name);
    const bool is_connected = !name.empty() && socket &&
                              ::connect(socket.get(), address.get(), address.bytes) == 0 &&
                              is_same_user(socket.get());
    state_->peers.push_back(is_connected ? std::move(socket) : UniqueFd());
  }
}

void SharedMemoryProbe::serve() {
  if (!state_->listener) return;
  for (;;) {
    const UniqueFd socket = unless_exhausted(
        ::accept4(state_->listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept");
    if (!socket && errno == EINTR) continue;
    if (!socket) return;
    if (is_same_user(socket.get())) send_descriptor(socket.get(), state_->memory.get());
  }
}

std::vector<bool> SharedMemoryProbe::collect() {
  std::vector<bool> can_reach;
  for (std::size_t r = 0; r < state_->peers.size(); ++r) {
    const std::string& expected = state_->peer_names[r];
    std::string content(expected.size(), '\0');
    const UniqueFd memory =
        state_->peers[r] ? receive_descriptor(state_->peers[r].get()) : UniqueFd();
    const bool is_read =
        memory &&
        std::cmp_equal(::pread(memory.get(), content.data(), content.size(), 0), content.size());
    can_reach.push_back(is_read && content == expected);
  }
  return can_reach;
}

}  // namespace penstock::detail
