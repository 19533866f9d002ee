#pragma once

#include <string>
#include <thread>

#include "core/unique_fd.hpp"
#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

/// Hands copies of one file descriptor to other processes of the same user, over a socket without
/// a path. Serves on a thread of its own until it is destroyed.
class FdServer {
 public:
  /// Errors: System.
  explicit FdServer(UniqueFd fd);
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

  /// Where receive_fd finds this server: a random name in this network namespace.
  const std::string& address() const noexcept { return address_; }

 private:
  void serve() const;

  UniqueFd fd_;
  std::string address_;
  UniqueFd listener_;
  UniqueFd wake_;
  std::thread thread_;
};

/// The descriptor that the server at `address` hands out.
///
/// Errors: System if there is no such server, if it belongs to another user, or if it answers with
///         anything but one descriptor; PeerFailed if stopped; Timeout.
UniqueFd receive_fd(const std::string& address, const StopFlag& stop);

}  // namespace penstock::detail
