#pragma once

#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "core/unique_fd.hpp"
#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

/// What the kernel sends with one message.
inline constexpr std::size_t kMaxFdsOfMessage = 253;

/// Hands copies of file descriptors to other processes of the same user, over a socket without
/// a path. Serves on a thread of its own until it is destroyed.
class FdServer {
 public:
  /// Errors: System.
  explicit FdServer(UniqueFd fd);

  /// 1 to kMaxFdsOfMessage descriptors, which every asker gets in this order.
  ///
  /// Errors: System.
  explicit FdServer(std::vector<UniqueFd> fds);
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

  /// Where receive_fds finds this server: a random name in this network namespace.
  const std::string& address() const noexcept { return address_; }

 private:
  void serve();
  UniqueFd accept();

  std::vector<UniqueFd> fds_;
  std::string address_;
  UniqueFd listener_;
  UniqueFd wake_;
  UniqueFd spare_;  ///< Keeps a place for the connection of an asker.
  std::thread thread_;
};

/// The descriptors that the server at `address` hands out.
///
/// Errors: System if there is no such server, if it belongs to another user, or if this process has
///         no room for all of them; PeerFailed if stopped; Timeout.
std::vector<UniqueFd> receive_fds(const std::string& address, const StopFlag& stop);

/// The descriptor that the server at `address` hands out.
///
/// Errors: System if there is no such server, if it belongs to another user, or if it answers with
///         anything but one descriptor; PeerFailed if stopped; Timeout.
UniqueFd receive_fd(const std::string& address, const StopFlag& stop);

}  // namespace penstock::detail
