#pragma once

#include <memory>
#include <string>

#include "penstock/comm/communicator.hpp"

namespace penstock {

// Ranks as processes that are connected by sockets, each to every other. The kernel closes the
// sockets of a process that dies, so its end is known at once; a rank that is silent is given up at
// the deadline.
//
// Addresses are texts: "host:port" (TCP), "unix:@name" or "unix:/path" (one machine and one user; a
// name belongs to a network namespace, a path to a file system). Over TCP whoever reaches the
// address can take part, so it should be on a private network or the loopback.

/// Rank 0's end of a group that has yet to meet. It listens from the start, so that the others can
/// be told where.
class SocketGroupHost {
 public:
  /// Range:  port 0 lets the system choose one.
  /// Errors: InvalidArgument or NotFound for an address that is none, System if it is taken.
  explicit SocketGroupHost(const std::string& address = "127.0.0.1:0");
  ~SocketGroupHost();
  SocketGroupHost(SocketGroupHost&&) noexcept;
  SocketGroupHost& operator=(SocketGroupHost&&) noexcept;

  /// What the other ranks must be given.
  std::string address() const;

  /// Waits for ranks 1 to size - 1 and becomes rank 0. Used up by it.
  ///
  /// Errors: as join_socket_group.
  std::unique_ptr<Communicator> make_communicator(int size, const CommOptions& options = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Joins a group of processes: rank 0 listens at `address`, the others go there, in any order.
///
/// Collective: every rank, with the same size and address.
/// Errors:     on all ranks: InvalidArgument if two claim one rank or they differ about the size;
///             PeerFailed, naming the ranks, if some do not come in time or die.
/// Cost:       two connections to each rank. A call sends each rank its bytes once; nothing is
///             relayed.
std::unique_ptr<Communicator> join_socket_group(int rank, int size, const std::string& address,
                                                const CommOptions& options = {});

}  // namespace penstock
