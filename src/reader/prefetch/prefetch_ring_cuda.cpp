#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cuda/capture.hpp"
#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/unique_handle.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"
#include "reader/direct/gather_rows_cuda.hpp"
#include "reader/direct/row_order.hpp"
#include "reader/prefetch/prefetch_faults.hpp"
#include "reader/prefetch/prefetch_ring.hpp"

namespace penstock::detail {
namespace {

/// An event and the capture that it was last recorded in.
///
/// An event orders work inside one capture, or outside of all. Between a capture and what surrounds
/// it the order is that of the streams on which graphs are launched, so that nothing is left to do.
class CaptureEvent {
 public:
  CaptureEvent() : event_(cuda::make_event()) {}

  void record(StreamRef stream) {
    capture_ = cuda::capture_of(stream);
    PENSTOCK_CUDA_CHECK(cudaEventRecord(event_.get(), stream.get()));
    is_recorded_ = true;
  }

  /// Whether `stream` can wait for it: both lie in the same capture, or outside of all.
  bool can_order(StreamRef stream) const {
    return is_recorded_ && capture_ == cuda::capture_of(stream);
  }

  void make_wait(StreamRef stream) const {
    PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(stream.get(), event_.get(), 0));
  }

 private:
  cuda::UniqueEvent event_;
  cuda::CaptureId capture_ = 0;
  bool is_recorded_ = false;
};

class CudaRing;

/// A slot and the read in it.
class CudaSlot final : public PrefetchSlot {
 public:
  void wait(StreamRef consumer) override;
  std::span<const std::byte> rows() const override { return rows_; }
  std::int64_t tokens() const override { return tokens_; }
  void release(StreamRef consumer) noexcept override;

 private:
  friend class CudaRing;

  void join(StreamRef consumer);

  Device device_;
  std::span<std::byte> staging_;  // of max_tokens
  std::span<std::byte> order_;    // workspace of order_rows(); empty where order does not pay
  std::span<std::byte> rows_;     // of this read
  std::int64_t tokens_ = 0;
  StreamRef joiner_;       // who waited last; the producer before anybody has
  CaptureEvent ready_;     // the rows are there
  CaptureEvent reusable_;  // the rows have been consumed
  bool is_joined_ = false;
  bool is_held_ = false;
};

/// Reads on a stream of its own. After the constructor nothing allocates or waits on the host.
class CudaRing final : public PrefetchRing, public std::enable_shared_from_this<CudaRing> {
 public:
  /// The table's device must be current.
  CudaRing(const Table& table, const PrefetchOptions& options)
      : table_(table),
        options_(options),
        row_bytes_(table.view().local_columns * staging_row_bytes(table.view(), options.format)),
        stream_(cuda::make_background_stream()),
        order_stream_(cuda::make_stream(cuda::StreamPriority::Highest)),
        forked_(cuda::make_event()),
        ordered_(cuda::make_event()),
        slots_(static_cast<std::size_t>(options.slots)) {
    load_gather_kernels();
    const auto slot_bytes = static_cast<std::size_t>(row_bytes_ * options.max_tokens);
    staging_ = Buffer::zeros(table.device(), slot_bytes * slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].device_ = table.device();
      slots_[i].staging_ = std::span(staging_.data() + i * slot_bytes, slot_bytes);
    }
    if (has_fast_rows(table.view())) take_order_memory();
  }

  ~CudaRing() override {
    // Reads under way write to staging memory and read the table; both go after this.
    static_cast<void>(cudaStreamSynchronize(order_stream_.get()));
    static_cast<void>(cudaStreamSynchronize(stream_.get()));
  }
  CudaRing(const CudaRing&) = delete;
  CudaRing& operator=(const CudaRing&) = delete;

  std::shared_ptr<PrefetchSlot> start(const RowIds& ids, StreamRef producer,
                                      const std::int32_t* num_tokens) override {
    const auto slot = std::ranges::find(slots_, false, &CudaSlot::is_held_);
    if (slot == slots_.end()) return nullptr;
    const cuda::DeviceGuard guard(table_.device());
    const StreamRef own(stream_.get());
    slot->tokens_ = ids.tokens;
    slot->rows_ = slot->staging_.first(static_cast<std::size_t>(ids.tokens * row_bytes_));
    slot->joiner_ = producer;
    slot->is_joined_ = false;
    const OrderedRow* order = nullptr;
    const std::int64_t rows = ids.tokens * table_.view().local_columns;
    if (!slot->order_.empty() && order_pays(table_.view(), rows)) {
      const StreamRef sorts(order_stream_.get());
      fork(producer, sorts, *slot);
      order = order_rows(table_.view(), ids, slot->order_, sorts);
      if (!prefetch_faults().skips_order) pass_on(ordered_, sorts, own);
    } else {
      fork(producer, own, *slot);
    }
    gather_rows_in_order(table_.view(), ids, options_.format, slot->rows_.data(), table_.device(),
                         own, {.blocks = options_.blocks, .num_tokens = num_tokens}, order);
    slot->ready_.record(own);
    slot->is_held_ = true;
    return {shared_from_this(), &*slot};
  }

 private:
  static void pass_on(const cuda::UniqueEvent& event, StreamRef from, StreamRef to) {
    PENSTOCK_CUDA_CHECK(cudaEventRecord(event.get(), from.get()));
    PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(to.get(), event.get(), 0));
  }

  /// Makes `own` wait for the ids, and for whoever reads the slot still.
  void fork(StreamRef producer, StreamRef own, const CudaSlot& slot) {
    const PrefetchFaults& faults = prefetch_faults();
    if (!faults.skips_producer) pass_on(forked_, producer, own);
    if (!faults.skips_reuse && slot.reusable_.can_order(own)) slot.reusable_.make_wait(own);
  }

  /// Sorting takes a few short kernels of few blocks. They run on a stream of the highest priority:
  /// on that of the read, each would wait for a gap in the model's own kernels.
  void take_order_memory() {
    const std::int64_t rows = options_.max_tokens * table_.view().local_columns;
    if (!order_pays(table_.view(), rows)) return;
    const std::size_t bytes = order_bytes(rows);
    order_memory_ = Buffer::allocate(table_.device(), bytes * slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].order_ = std::span(order_memory_.data() + i * bytes, bytes);
    }
    load_order_kernels(rows, slots_.front().order_, StreamRef(order_stream_.get()));
  }

  Table table_;  // kept open for the reads
  PrefetchOptions options_;
  std::int64_t row_bytes_;  // of a token
  Buffer staging_;
  Buffer order_memory_;
  cuda::UniqueStream stream_;
  cuda::UniqueStream order_stream_;
  cuda::UniqueEvent forked_;
  cuda::UniqueEvent ordered_;
  std::vector<CudaSlot> slots_;
};

/// Orders `consumer` after the read.
void CudaSlot::join(StreamRef consumer) {
  if (!ready_.can_order(consumer)) {
    // Joined before the capture: the stream that launches the graph has the rows by then.
    if (is_joined_) return;
    throw Error(ErrorCode::InvalidArgument,
                "Ticket::wait: the read was started outside the consumer's capture, or inside "
                "another; needed: a wait on the stream that launches the graph, before the launch");
  }
  if (!prefetch_faults().skips_consumer) ready_.make_wait(consumer);
  joiner_ = consumer;
  is_joined_ = true;
}

void CudaSlot::wait(StreamRef consumer) {
  const cuda::DeviceGuard guard(device_);
  join(consumer);
}

void CudaSlot::release(StreamRef consumer) noexcept {
  is_held_ = false;
  // A ticket that is dropped names no stream: then it is the one that waited, or the producer.
  const StreamRef last = consumer.get() != nullptr ? consumer : joiner_;
  try {
    const cuda::DeviceGuard guard(device_);
    // A read whose capture has ended unjoined made that capture fail: nothing is left to order.
    if (!is_joined_ && ready_.can_order(last)) join(last);
    reusable_.record(last);
  } catch (const Error& error) {
    log(LogLevel::Warning, fmt::format("Ticket::release: {}", error.what()));
  }
}

}  // namespace

PrefetchFaults& prefetch_faults() {
  static PrefetchFaults faults;
  return faults;
}

std::shared_ptr<PrefetchRing> make_prefetch_ring_cuda(const Table& table,
                                                      const PrefetchOptions& options) {
  const cuda::DeviceGuard guard(table.device());  // events and streams belong to one device
  return std::make_shared<CudaRing>(table, options);
}

}  // namespace penstock::detail
