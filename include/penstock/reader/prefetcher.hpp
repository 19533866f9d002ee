#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table.hpp"

namespace penstock {

/// Sizes of a prefetcher, fixed when it is made.
struct PrefetchOptions {
  std::int64_t max_tokens = 8192;  ///< Tokens of the largest read.
  int slots = 2;                   ///< Reads that may be in flight or unconsumed at once.
  RowFormat format = RowFormat::Bf16;
  int blocks = 0;  ///< CUDA: thread blocks of a read; 0 takes the fewest that saturate the source.
};

namespace detail {
class PrefetchRing;
class PrefetchSlot;
}  // namespace detail

/// A read under way. Move-only. Dropping a ticket joins it.
///
/// Threads: different tickets may be used on different threads, one ticket on one at a time.
class Ticket {
 public:
  /// An empty ticket; every use but a move into it is an error.
  Ticket() noexcept;
  ~Ticket();
  Ticket(Ticket&&) noexcept;
  Ticket& operator=(Ticket&&) noexcept;

  /// Makes `consumer` (CPU: the caller) wait for this read, and for no other.
  ///
  /// Errors: what the read itself failed with, every time; InvalidArgument for an empty ticket.
  void wait(StreamRef consumer = {});

  /// Staging memory, [tokens, local_columns, staging_row_bytes]. Meaningful after wait(). Its
  /// address is stable: a slot of the ring keeps it for ever. The slot is reused once this ticket
  /// is gone and, on CUDA, the consumer's work enqueued before release() has run. The rows stay
  /// valid while the ticket lives, even past the end of its prefetcher and its table.
  std::span<const std::byte> rows() const;
  std::int64_t tokens() const;

  /// Joins the read and gives the slot back; later reads wait for what `consumer` has enqueued so
  /// far. The ticket is empty from then on. Nothing happens if it is empty already.
  void release(StreamRef consumer = {});

  /// CPU: how long the read took and how long wait() blocked for it. Zero on CUDA.
  std::chrono::nanoseconds read_time() const;
  std::chrono::nanoseconds wait_time() const;

 private:
  friend class Prefetcher;
  explicit Ticket(std::shared_ptr<detail::PrefetchSlot> slot) noexcept;

  std::shared_ptr<detail::PrefetchSlot> slot_;  // shares the ring, which outlives its prefetcher
};

/// Reads rows of one table ahead of need: on worker threads (CPU) or on a stream of its own (CUDA).
///
/// Threads: start() from one thread at a time. CPU: reads run one after another, in the order of
///          start(), each on as many threads as parallel_threads() gave the constructing thread.
/// Cost:    slots * max_tokens * local_columns * staging_row_bytes of staging memory, and on CUDA as
///          often gather_workspace_bytes; allocated by the constructor, nothing after it.
class Prefetcher {
 public:
  /// Errors: InvalidArgument for options below 1; OutOfMemory.
  explicit Prefetcher(Table table, const PrefetchOptions& options = {});
  ~Prefetcher();
  Prefetcher(Prefetcher&&) noexcept;
  Prefetcher& operator=(Prefetcher&&) noexcept;

  /// Starts a read. Never blocks the producer's stream, never waits for a read or a ticket.
  ///
  /// Device: ids lie on the table's device. On the CPU they are copied, and `num_tokens` is ignored.
  /// Async:  on CUDA the read begins after what `producer` has enqueued so far; ids must outlive
  ///         it. Legal inside stream capture: fork and join are part of the same graph.
  /// Errors: InvalidArgument for more than max_tokens tokens, or if no slot is free because every
  ///         ticket is still held.
  Ticket start(const RowIds& ids, StreamRef producer = {},
               const std::int32_t* num_tokens = nullptr);

  const Table& table() const;
  const PrefetchOptions& options() const;

  /// Bytes of all slots' staging memory.
  std::int64_t staging_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
