#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/start_thread.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "reader/prefetch/prefetch_ring.hpp"

namespace penstock::detail {
namespace {

using Clock = std::chrono::steady_clock;

class CpuRing;

/// A slot and the read in it. The ring's mutex guards everything but the staging memory, which
/// belongs to the worker until the read has ended, and to the ticket after that.
class CpuSlot final : public PrefetchSlot {
 public:
  enum class State { Free, Reading, Ended };

  void wait(StreamRef consumer) override;
  std::span<const std::byte> rows() const override { return rows_; }
  std::int64_t tokens() const override { return ids_.tokens; }
  void release(StreamRef consumer) noexcept override;
  std::chrono::nanoseconds read_time() const override;
  std::chrono::nanoseconds wait_time() const override { return wait_time_; }

 private:
  friend class CpuRing;

  CpuRing* ring_ = nullptr;
  std::span<std::byte> staging_;       // of max_tokens
  std::span<std::byte> rows_;          // of this read
  std::vector<std::int32_t> id_copy_;  // of max_tokens
  RowIds ids_;
  State state_ = State::Free;
  std::exception_ptr error_;
  std::chrono::nanoseconds read_time_{};
  std::chrono::nanoseconds wait_time_{};
};

/// Reads one after another on a thread of its own, in the order of start().
class CpuRing final : public PrefetchRing, public std::enable_shared_from_this<CpuRing> {
 public:
  CpuRing(const Table& table, const PrefetchOptions& options, ReadRows read)
      : table_(table),
        read_(std::move(read)),
        row_bytes_(table.view().local_columns * staging_row_bytes(table.view(), options.format)),
        slots_(static_cast<std::size_t>(options.slots)),
        queue_(slots_.size()) {
    const auto slot_bytes = static_cast<std::size_t>(row_bytes_ * options.max_tokens);
    const auto columns = table.spec().head_sizes.size();
    // Written now, so that no read pays for the first touch of a page.
    staging_ = Buffer::zeros(Device::cpu(), slot_bytes * slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      slots_[i].ring_ = this;
      slots_[i].staging_ = std::span(staging_.data() + i * slot_bytes, slot_bytes);
      slots_[i].id_copy_.resize(static_cast<std::size_t>(options.max_tokens) * columns);
    }
    worker_ = detail::start_thread([this, threads = parallel_threads()] {
      set_parallel_threads(threads);
      work();
    });
  }

  ~CpuRing() override {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    wake_.notify_one();
    worker_.join();
  }
  CpuRing(const CpuRing&) = delete;
  CpuRing& operator=(const CpuRing&) = delete;

  std::shared_ptr<PrefetchSlot> start(const RowIds& ids, StreamRef /*producer*/,
                                      const std::int32_t* /*num_tokens*/) override {
    CpuSlot* slot = take_free_slot();
    if (slot == nullptr) return nullptr;
    copy_ids(ids, *slot);
    {
      const std::lock_guard lock(mutex_);
      queue_[(queue_begin_ + queue_size_) % queue_.size()] = slot;
      ++queue_size_;
    }
    wake_.notify_one();
    return {shared_from_this(), slot};
  }

  void wait(CpuSlot& slot) {
    const auto start = Clock::now();
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return slot.state_ != CpuSlot::State::Reading; });
    slot.wait_time_ += Clock::now() - start;
  }

  void release(CpuSlot& slot) noexcept {
    wait(slot);
    const std::lock_guard lock(mutex_);
    slot.error_ = nullptr;
    slot.state_ = CpuSlot::State::Free;
  }

 private:
  CpuSlot* take_free_slot() {
    const std::lock_guard lock(mutex_);
    const auto slot = std::ranges::find(slots_, CpuSlot::State::Free, &CpuSlot::state_);
    if (slot == slots_.end()) return nullptr;
    slot->state_ = CpuSlot::State::Reading;
    slot->read_time_ = slot->wait_time_ = {};
    return &*slot;
  }

  void copy_ids(const RowIds& ids, CpuSlot& slot) const {
    const int columns = static_cast<int>(table_.spec().head_sizes.size());
    for (std::int64_t token = 0; token < ids.tokens; ++token) {
      std::copy_n(ids.data + token * ids.token_stride, std::min(columns, ids.columns),
                  slot.id_copy_.data() + token * columns);
    }
    slot.ids_ = {.data = slot.id_copy_.data(),
                 .tokens = ids.tokens,
                 .columns = columns,
                 .token_stride = columns};
    slot.rows_ = slot.staging_.first(static_cast<std::size_t>(ids.tokens * row_bytes_));
  }

  void work() {
    while (CpuSlot* slot = next_read()) {
      const auto start = Clock::now();
      std::exception_ptr error;
      try {
        read_(slot->ids_, slot->rows_);
      } catch (...) {
        error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        slot->error_ = error;
        slot->read_time_ = Clock::now() - start;
        slot->state_ = CpuSlot::State::Ended;
      }
      ended_.notify_all();
    }
  }

  /// Null when there is nothing left to do, ever.
  CpuSlot* next_read() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return is_stopping_ || queue_size_ > 0; });
    if (queue_size_ == 0) return nullptr;
    CpuSlot* slot = queue_[queue_begin_];
    queue_begin_ = (queue_begin_ + 1) % queue_.size();
    --queue_size_;
    return slot;
  }

  Table table_;  // kept open for the reads
  ReadRows read_;
  std::int64_t row_bytes_;  // of a token
  Buffer staging_;
  std::vector<CpuSlot> slots_;

  std::mutex mutex_;
  std::condition_variable wake_;   // the worker waits for work
  std::condition_variable ended_;  // tickets wait for reads
  std::vector<CpuSlot*> queue_;    // a ring of its own, as long as slots_
  std::size_t queue_begin_ = 0;
  std::size_t queue_size_ = 0;
  bool is_stopping_ = false;
  std::thread worker_;

  friend class CpuSlot;
};

void CpuSlot::wait(StreamRef /*consumer*/) {
  ring_->wait(*this);
  if (error_) std::rethrow_exception(error_);
}

void CpuSlot::release(StreamRef /*consumer*/) noexcept {
  ring_->release(*this);
}

std::chrono::nanoseconds CpuSlot::read_time() const {
  const std::lock_guard lock(ring_->mutex_);
  return read_time_;
}

}  // namespace

std::shared_ptr<PrefetchRing> make_prefetch_ring_cpu(const Table& table,
                                                     const PrefetchOptions& options) {
  return make_prefetch_ring_cpu(table, options,
                                [view = table.view(), format = options.format](
                                    const RowIds& ids, std::span<std::byte> staging) {
                                  gather_rows(view, ids, format, staging, Device::cpu());
                                });
}

std::shared_ptr<PrefetchRing> make_prefetch_ring_cpu(const Table& table,
                                                     const PrefetchOptions& options,
                                                     ReadRows read) {
  return std::make_shared<CpuRing>(table, options, std::move(read));
}

}  // namespace penstock::detail
