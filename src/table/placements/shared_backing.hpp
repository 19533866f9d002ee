#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/unique_fd.hpp"
#include "penstock/core/device.hpp"
#include "penstock/table/host_backing.hpp"
#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

/// Host memory that the ranks of a node share, as one rank has it, whatever it is made of.
///
/// The creator calls create(), reserve(), map() without descriptors, fills writable(), and calls
/// seal() and pin(). The others call map() with what the creator's descriptors() gave, and pin().
/// The destructor leaves nothing behind, whatever was called before it. The memory itself lives until
/// every rank has let go of it, whoever made it.
///
/// Errors: of all calls OutOfMemory, System, Unsupported; PeerFailed once stopped.
class SharedBacking {
 public:
  SharedBacking() = default;
  virtual ~SharedBacking() = default;
  SharedBacking(const SharedBacking&) = delete;
  SharedBacking& operator=(const SharedBacking&) = delete;

  /// Checks limits and makes the memory. No page of it is taken yet.
  virtual void create() = 0;

  /// Takes every page, so that a shortage is an error here and no signal later.
  virtual void reserve(const StopFlag& stop) = 0;

  /// What other ranks map the memory by, at most kMaxFdsOfMessage. After reserve().
  virtual std::vector<UniqueFd> descriptors() const = 0;

  /// Maps the memory for reading. `fds` is empty where create() was called.
  virtual void map(std::vector<UniqueFd> fds, const StopFlag& stop) = 0;

  /// The memory while it is filled: from reserve() to seal().
  virtual std::byte* writable() const = 0;

  /// Ends writing.
  virtual void seal() = 0;

  /// Makes the mapping readable by the device. Gives up descriptors.
  virtual void pin(const StopFlag& stop) = 0;

  /// The first byte, as the device addresses it. After pin().
  virtual const std::byte* data() const = 0;

  /// For the status: "memfd, 4 KiB pages, sealed". After pin().
  virtual std::string description() const = 0;
};

/// Memory of `bytes` for readers on `device`. `backing` is not Auto.
///
/// Errors: Unsupported for cumem where no GPU reads it, with what would work.
std::unique_ptr<SharedBacking> make_shared_backing(HostBacking backing, Device device,
                                                   std::size_t bytes);

}  // namespace penstock::detail
