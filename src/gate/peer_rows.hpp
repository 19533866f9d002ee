#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"

namespace penstock::detail {

/// A rank's slice of a weight, and the other ranks' slices where this rank can read them.
class PeerRows {
 public:
  PeerRows() = default;
  virtual ~PeerRows() = default;
  PeerRows(const PeerRows&) = delete;
  PeerRows& operator=(const PeerRows&) = delete;

  virtual std::span<const BF16> own() const = 0;

  /// Bytes that this rank keeps for it.
  virtual std::size_t resident_bytes() const = 0;

  /// Whether of() works. Equal on all ranks.
  virtual bool are_readable() const = 0;

  /// Rank `rank`'s slice, readable on this rank's device. Valid while this object lives, whatever
  /// has become of that rank.
  virtual const BF16* of(int rank) const = 0;
};

/// A rectangle of a weight in row-major order.
struct WeightSlice {
  const BF16* data = nullptr;
  std::int64_t stride = 0;  ///< Elements from one row to the next.
  std::int64_t rows = 0;
  std::int64_t columns = 0;

  std::int64_t elements() const { return rows * columns; }
};

/// Copies `slice` to host memory and opens it to the other ranks: of the same process directly, of
/// the same machine through shared memory. Where a rank cannot be reached, nobody reads anybody.
///
/// Collective: over `comm`; null: a group of one.
/// Errors:     on every rank if a rank has no memory.
std::unique_ptr<PeerRows> share_rows_cpu(Communicator* comm, const WeightSlice& slice);

/// The same for slices that nobody else needs.
std::unique_ptr<PeerRows> keep_rows_cpu(const WeightSlice& slice);

// The same for device memory, in a build with CUDA; `slice` may lie in host or device memory. Shared
// are this rank's rows of a weight of `total_rows` rows, split by even_share().

std::unique_ptr<PeerRows> share_rows_cuda(Communicator& comm, Device device,
                                          const WeightSlice& slice, std::int64_t total_rows);
std::unique_ptr<PeerRows> keep_rows_cuda(Device device, const WeightSlice& slice);

}  // namespace penstock::detail
