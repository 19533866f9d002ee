#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"

namespace penstock {

/// A group of ranks that exchange bytes. Every engine (threads, mpi, nccl, callbacks) keeps the
/// contract below, and one test suite runs against all of them.
///
/// Collective: every rank of the group calls the same functions in the same order. Sizes must agree
///             as each function says; arguments are compared over all ranks before the first byte
///             moves, so that a mismatch raises InvalidArgument on every rank and changes nothing.
/// Device:     `device()` tells where buffers must lie: host memory for every engine but nccl.
/// Async:      host engines have finished on return. nccl enqueues on `stream` and returns; one
///             stream per communicator.
/// Threads:    one call at a time on one communicator.
/// Errors:     when one rank throws, goes silent past the deadline, leaves or dies, every other
///             rank's pending and next call raises PeerFailed, which names that rank and its first
///             cause. The group is dead from then on and every call says so. No call hangs.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual Device device() const noexcept { return Device::cpu(); }

  /// "threads", "mpi", "nccl" or "callbacks".
  virtual std::string_view engine() const noexcept = 0;

  /// Shapes: `in` has the same size on every rank; `out` has size() times that; block r of `out` is
  ///         rank r's `in`. `in` may be the rank's own block of `out`.
  virtual void all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                          StreamRef stream = {}) = 0;

  /// Shapes: `in` and `out` are size() blocks of `block_bytes`; block r of `in` goes to rank r,
  ///         block r of `out` comes from rank r. `block_bytes` is equal on every rank.
  virtual void all_to_all(std::span<const std::byte> in, std::span<std::byte> out,
                          std::size_t block_bytes, StreamRef stream = {}) = 0;

  /// Like all_to_all with unequal blocks, laid side by side in rank order.
  ///
  /// Units:  bytes. `in_bytes[r]` goes to rank r, `out_bytes[r]` comes from rank r and must be what
  ///         that rank's `in_bytes` says for this one. Zero is a legal size.
  virtual void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                            std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                            StreamRef stream = {}) = 0;

  /// Sums `in` over the ranks and leaves block r of the sum on rank r.
  ///
  /// Shapes: `in` is size() equal blocks, `out` one of them. Element type F32 or BF16; BF16 blocks
  ///         are summed in float in rank order and rounded once (nccl: as NCCL does).
  virtual void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                              StreamRef stream = {}) = 0;

  /// Copies `data` of rank `root` to the others. Equal sizes.
  virtual void broadcast(std::span<std::byte> data, int root, StreamRef stream = {}) = 0;

  /// Returns when every rank has called it (nccl: and this rank's stream has been drained).
  virtual void barrier() = 0;

  /// Every rank's byte string, in rank order. Sizes may differ. Always in host memory.
  virtual std::vector<std::vector<std::byte>> all_gather_object(
      std::span<const std::byte> mine) = 0;

  /// A communicator over the ranks that pass the same `color`, ordered by (`key`, rank). A negative
  /// color takes part in the call and gets nothing.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  /// Tells the other ranks that this one cannot go on, and why. Their pending and next calls raise
  /// PeerFailed with `cause`. Safe from a destructor or a catch block.
  virtual void abort(std::string_view cause) noexcept = 0;

 protected:
  Communicator() = default;
};

/// How long a rank waits for the others inside one call before it gives them up.
struct CommOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  /// The same for the meeting of all ranks at the start. Threads of one process need none.
  std::chrono::milliseconds start_deadline = std::chrono::seconds(60);
};

/// `size` communicators of one group inside this process, one for each of `size` threads.
///
/// A communicator that is destroyed while others still wait counts as a rank that left.
std::vector<std::unique_ptr<Communicator>> make_thread_group(int size,
                                                             const CommOptions& options = {});

/// Runs `body` on `size` threads, one for each rank of a new group, and returns when all have ended.
/// Each thread gets its part of the caller's parallel_threads().
///
/// Errors: an exception that leaves `body` aborts the group. When all threads have ended, the
///         exception of the lowest rank that did not merely hear of another's failure is rethrown.
///         System if a thread cannot be started; those that were hear of it.
void run_thread_group(int size, const std::function<void(Communicator&)>& body,
                      const CommOptions& options = {});

/// A group of one. Every collective is a copy.
std::unique_ptr<Communicator> make_solo_communicator();

/// All ranks of MPI_COMM_WORLD; initialises MPI if nobody has.
///
/// Errors: Unsupported if built without PENSTOCK_WITH_MPI.
std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& options = {});

/// How an nccl communicator behaves.
struct NcclOptions {
  /// Compare the arguments of all ranks before each call, through the host's communicator: tens of
  /// microseconds a call, but a mismatch or a missing rank is an error before anything is enqueued.
  /// Without it each rank checks its own sizes, and a rank that does not come is found by barrier().
  bool compares_arguments = true;
  /// How long barrier() waits for the stream before it aborts the group.
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
};

/// The ranks of `host`, each with a CUDA device of its own, joined by NCCL. `host` lives in host
/// memory, carries the id, objects and barriers, and must outlive the result.
///
/// Collective: over `host`.
/// Errors:     Unsupported if built without PENSTOCK_WITH_NCCL or if libnccl.so.2 cannot be opened.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device device,
                                                     const NcclOptions& options = {});

/// What a host framework brings: everything else is made of these. All are called by every rank of
/// the group in the same order, and block until they have their answer.
struct CommCallbacks {
  using Bytes = std::vector<std::byte>;

  /// Gathers every rank's bytes (sizes may differ) in rank order. Required.
  std::function<std::vector<Bytes>(std::span<const std::byte> mine)> all_gather;
  /// Exchanges one byte string with every rank. Optional: made from all_gather when empty, at
  /// size() times the traffic.
  std::function<std::vector<Bytes>(const std::vector<Bytes>& for_each_rank)> all_to_all = {};
  /// Optional: an empty all_gather when empty.
  std::function<void()> barrier = {};
  /// Tells the host framework that this rank gives up. Optional. Must not throw.
  std::function<void(std::string_view cause)> abort = {};
  /// The callbacks of new groups, each a list of ranks of this one. `mine` is the index of the group
  /// that this rank is in, or -1; then the answer is not used. Optional: without it split raises
  /// Unsupported.
  std::function<CommCallbacks(const std::vector<std::vector<int>>& groups, int mine)> split = {};
};

/// A communicator made of a framework's own collectives (torch.distributed and the like).
///
/// Errors: an exception of a callback becomes PeerFailed with its text; InvalidArgument for a rank
///         outside [0, size) or an empty `all_gather`. How long a silent rank is waited for is up to
///         the callbacks.
/// Cost:   one all_gather of some 50 bytes a call, which carries the data of all_gather, broadcast
///         and all_gather_object too.
std::unique_ptr<Communicator> make_callback_communicator(int rank, int size,
                                                         CommCallbacks callbacks);

}  // namespace penstock
