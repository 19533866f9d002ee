#pragma once

#include <poll.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/socket.hpp"
#include "penstock/comm/communicator.hpp"

namespace penstock::detail {

/// How ranks talk to each other before they are connected to each other.
class StartupChannel {
 public:
  using Bytes = std::vector<std::byte>;

  virtual ~StartupChannel() = default;
  StartupChannel(const StartupChannel&) = delete;
  StartupChannel& operator=(const StartupChannel&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// An address of this rank that the others can reach; its port does not matter.
  virtual SocketAddress local() const = 0;

  /// Every rank's bytes, in rank order.
  ///
  /// Errors: PeerFailed, naming the rank, if one has gone or does not come in time.
  virtual std::vector<Bytes> all_gather(std::span<const std::byte> mine) = 0;

  /// Adds what to wait for, so that the loss of a rank ends a poll().
  virtual void add_to(std::vector<pollfd>& waiting) const = 0;

  /// Throws PeerFailed if a rank has gone. Does not wait.
  virtual void check() = 0;

 protected:
  StartupChannel() = default;
};

/// A star around rank 0, which listens at an address that all know.
///
/// Errors: InvalidArgument on every rank if two claim one rank or they differ about the size.
std::unique_ptr<StartupChannel> open_star_as_hub(int size, Listener listener,
                                                 const CommOptions& options);
std::unique_ptr<StartupChannel> open_star_as_leaf(int rank, int size, const SocketAddress& hub,
                                                  const CommOptions& options);

// For whoever started the ranks, and sees one end that the others still expect.

/// What the ranks of a star say of one that has ended before it came.
std::string describe_absence(int rank);

/// Tells the hub, if one listens now, that `rank` will not come. Does not wait.
bool tell_hub_of_absence(const SocketAddress& hub, int rank);

/// Tells a leaf that has come to where no hub is any more that `rank` has ended.
void tell_leaf_of_absence(UniqueFd socket, int rank);

/// Connections of one rank to the others of its group; empty at its own place.
struct Mesh {
  std::vector<UniqueFd> links;  ///< For PeerLinks.
  std::vector<UniqueFd> data;   ///< Empty if not asked for.
};

enum class MeshKind { LinksOnly, LinksAndData };

/// Connects every rank of `members` to every other. All ranks of `channel` call it; a rank that is
/// not a member takes part in what the channel exchanges, and gets nothing.
///
/// Shapes: members: ranks of `channel`, in the order of the new group.
/// Errors: as `channel`; System if a socket cannot be had.
Mesh connect_mesh(StartupChannel& channel, std::span<const int> members, MeshKind kind,
                  const CommOptions& options);

}  // namespace penstock::detail
