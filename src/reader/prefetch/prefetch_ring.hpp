#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "penstock/core/stream.hpp"
#include "penstock/reader/prefetcher.hpp"

// What a device kind brings to Prefetcher: a ring of slots. Arguments have been checked.
namespace penstock::detail {

/// One slot of a ring, as the ticket that holds it sees it. Contracts as in Ticket.
class PrefetchSlot {
 public:
  virtual ~PrefetchSlot() = default;
  PrefetchSlot(const PrefetchSlot&) = delete;
  PrefetchSlot& operator=(const PrefetchSlot&) = delete;

  virtual void wait(StreamRef consumer) = 0;
  virtual std::span<const std::byte> rows() const = 0;
  virtual std::int64_t tokens() const = 0;
  virtual void release(StreamRef consumer) noexcept = 0;  ///< Joins the read first.
  virtual std::chrono::nanoseconds read_time() const { return {}; }
  virtual std::chrono::nanoseconds wait_time() const { return {}; }

 protected:
  PrefetchSlot() = default;
};

/// The slots, their staging memory and what fills it. Shared by the prefetcher and its tickets.
class PrefetchRing {
 public:
  virtual ~PrefetchRing() = default;
  PrefetchRing(const PrefetchRing&) = delete;
  PrefetchRing& operator=(const PrefetchRing&) = delete;

  /// Starts a read into a free slot; null if there is none. The pointer shares the ring.
  virtual std::shared_ptr<PrefetchSlot> start(const RowIds& ids, StreamRef producer,
                                              const std::int32_t* num_tokens) = 0;

 protected:
  PrefetchRing() = default;
};

/// Reads rows into staging memory; tests put another function in its place.
using ReadRows = std::function<void(const RowIds& ids, std::span<std::byte> staging)>;

std::shared_ptr<PrefetchRing> make_prefetch_ring_cpu(const Table& table,
                                                     const PrefetchOptions& options);
std::shared_ptr<PrefetchRing> make_prefetch_ring_cpu(const Table& table,
                                                     const PrefetchOptions& options, ReadRows read);

/// A build without CUDA never calls it, so that it needs no definition.
std::shared_ptr<PrefetchRing> make_prefetch_ring_cuda(const Table& table,
                                                      const PrefetchOptions& options);

}  // namespace penstock::detail
