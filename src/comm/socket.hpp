#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "core/unique_fd.hpp"

namespace penstock::detail {

using Deadline = std::chrono::steady_clock::time_point;

/// Milliseconds from now to `deadline` for poll(): rounded up, at least 0.
int poll_timeout(Deadline deadline);

/// Where a socket listens or connects.
///
/// Texts: "host:port" and "[IPv6]:port" (TCP), "unix:/path", "unix:@name" (a name that belongs to
///        the network namespace and leaves no file). Port 0 lets the system choose.
class SocketAddress {
 public:
  /// Errors: InvalidArgument for a malformed text, NotFound for a host without an address.
  static SocketAddress parse(const std::string& text);

  /// The address that `socket` is bound to.
  static SocketAddress of(int socket);

  std::string text() const;
  int family() const { return storage_.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t bytes() const { return bytes_; }

  /// An address of the same kind on the same interface, for one more listener of this process.
  SocketAddress sibling() const;

  /// The file of "unix:/path", else empty.
  std::string path() const;

 private:
  sockaddr_storage storage_{};
  socklen_t bytes_ = 0;
};

/// A listening socket. Removes its file, if it has one.
class Listener {
 public:
  Listener() = default;
  /// Errors: System with the address and the reason.
  explicit Listener(const SocketAddress& address);
  Listener(Listener&& other) noexcept = default;
  Listener& operator=(Listener&& other) noexcept = default;
  ~Listener();

  int get() const { return fd_.get(); }
  SocketAddress address() const { return SocketAddress::of(fd_.get()); }

  /// The next connection that waits, ready for use; empty if there is none.
  UniqueFd accept() const;

 private:
  UniqueFd fd_;
};

/// Connects, trying again until somebody listens. `check` runs before each try and every now and then
/// during one; what it throws ends the attempt.
///
/// Errors: Timeout when the deadline passes; System if trying again cannot help.
UniqueFd connect_to(const SocketAddress& address, Deadline deadline,
                    const std::function<void()>& check = {});

/// Moves as many bytes as the socket takes or has, without waiting.
struct Transfer {
  std::size_t bytes = 0;
  bool is_closed = false;  ///< The other end is gone.
};
Transfer send_some(int socket, std::span<const std::byte> bytes);
Transfer send_some(int socket, std::span<const std::byte> first, std::span<const std::byte> second);
Transfer receive_some(int socket, std::span<std::byte> bytes);

/// 32 hexadecimal digits that nobody else has.
std::string random_token();

}  // namespace penstock::detail
