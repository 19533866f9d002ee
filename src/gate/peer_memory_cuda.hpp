#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/buffer.hpp"

namespace penstock::detail {

/// A device buffer of every rank, each readable and writable from this rank's device.
class PeerMemory {
 public:
  /// Null where a rank's device cannot reach another's; then so on all ranks.
  ///
  /// Collective: over `comm`.
  /// Errors:     on every rank if `make` throws on one.
  static std::unique_ptr<PeerMemory> share(Communicator& comm, std::shared_ptr<Buffer> own);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  std::byte* of(int rank) const { return pointers_[static_cast<std::size_t>(rank)]; }
  const Buffer& own() const { return *own_; }

 private:
  explicit PeerMemory(std::shared_ptr<Buffer> own) : own_(std::move(own)) {}

  std::shared_ptr<Buffer> own_;
  std::vector<std::byte*> pointers_;
  std::vector<std::shared_ptr<Buffer>> of_this_process_;  ///< Kept alive for us by us.
  std::vector<std::byte*> opened_;                        ///< Of other processes.
};

}  // namespace penstock::detail
