#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/peer_links.hpp"
#include "comm/startup.hpp"
#include "penstock/comm/communicator.hpp"

namespace penstock::detail {

class LinkedGroup;

/// The groups of one rank that were split off one another. A rank that fails in one of them has
/// failed in all, and whoever hears of it first must not be taken for the cause.
///
/// Threads: any.
class GroupFamily {
 public:
  void add(const std::shared_ptr<LinkedGroup>& group);

  /// Records that world rank `world_rank` failed, and tells every group that it belongs to.
  void fail(int world_rank, const std::string& cause) noexcept;

  /// Records why a rank left a group early, so that this one, when it leaves others, can say so.
  void hear_reason(std::string_view reason) noexcept;

  /// "rank 3 of the whole group failed: ...", or empty.
  std::string first_failure() const noexcept;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<LinkedGroup>> groups_;
  std::string first_failure_;
};

/// One rank's end of a group of processes: PeerLinks for failures, and a transport that a derived
/// class brings. Moves byte strings; what they mean is the callbacks engine's business.
class LinkedGroup {
 public:
  using Bytes = CommCallbacks::Bytes;

  virtual ~LinkedGroup();
  LinkedGroup(const LinkedGroup&) = delete;
  LinkedGroup& operator=(const LinkedGroup&) = delete;

  int rank() const { return links_.rank(); }
  int size() const { return links_.size(); }
  const CommOptions& options() const { return options_; }
  const SocketAddress& local() const { return local_; }
  PeerLinks& links() { return links_; }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine);
  std::vector<Bytes> all_to_all(const std::vector<Bytes>& for_each_rank);
  void abort(std::string_view cause) noexcept;

  /// The group `mine` of `groups`, lists of ranks of this one; nothing for -1. All ranks call it.
  std::shared_ptr<LinkedGroup> split(const std::vector<std::vector<int>>& groups, int mine);

  /// World rank `world_rank` failed in another group; nothing if it is not of this one.
  void hear_of(int world_rank, const std::string& cause) noexcept;

  /// Takes news, and throws PeerFailed if a rank is known not to finish the call under way.
  void check();

  /// Throws PeerFailed: `peer` has gone, and the call under way needs it.
  [[noreturn]] void lose(int peer);

 protected:
  using Outgoing = std::vector<std::span<const std::byte>>;

  LinkedGroup(int rank, std::vector<UniqueFd> links, std::vector<int> world_ranks,
              const SocketAddress& local, std::shared_ptr<GroupFamily> family,
              const CommOptions& options);

  /// Sends out[r] to rank r and gives what came from it, for all r but this rank. Waits for both at
  /// once, so that ranks that all send before they receive do not block each other. Calls check()
  /// or lose() when it cannot go on.
  virtual std::vector<Bytes> transfer(const Outgoing& out) = 0;

  virtual MeshKind mesh_kind() const = 0;

  /// Runs on every rank before the parts connect; may call all_gather.
  virtual void prepare_split(std::size_t num_parts) = 0;

  /// A part of this group. `part` is its index, `world_ranks` its ranks, `place` this one's.
  virtual std::shared_ptr<LinkedGroup> make_part(Mesh mesh, int part, int place,
                                                 std::vector<int> world_ranks) = 0;

  const std::shared_ptr<GroupFamily>& family() const { return family_; }
  std::uint64_t num_calls() const { return num_calls_; }

  /// Gives up `peer` because the deadline has passed. Throws PeerFailed.
  [[noreturn]] void give_up(int peer);

 private:
  std::vector<Bytes> exchange(const Outgoing& out);

  /// Tells the others, in this group and, unless the rank merely left it, in all of the family.
  void fail(const PeerLinks::Failure& failure) noexcept;
  [[noreturn]] void fail_and_raise(const PeerLinks::Failure& failure);

  const std::shared_ptr<GroupFamily> family_;
  PeerLinks links_;
  const SocketAddress local_;
  const CommOptions options_;
  std::atomic<std::uint64_t> num_calls_ = 0;  ///< Finished ones.
};

/// What makes a communicator of a group.
CommCallbacks make_callbacks(const std::shared_ptr<LinkedGroup>& group);

/// make_callback_communicator with the name of another engine.
std::unique_ptr<Communicator> make_named_communicator(std::string_view engine, int rank, int size,
                                                      CommCallbacks callbacks);

}  // namespace penstock::detail
