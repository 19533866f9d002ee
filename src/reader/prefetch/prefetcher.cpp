#include "penstock/reader/prefetcher.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"
#include "reader/prefetch/prefetch_ring.hpp"

namespace penstock {
namespace {

/// slots * max_tokens * local_columns * staging_row_bytes.
std::int64_t ring_bytes(const TableView& view, const PrefetchOptions& options) {
  expects(options.max_tokens >= 1 && options.slots >= 1 && options.blocks >= 0,
          fmt::format("Prefetcher: found max_tokens {}, slots {}, blocks {}; needed: at least 1, 1 "
                      "and 0",
                      options.max_tokens, options.slots, options.blocks));
  std::int64_t bytes = view.local_columns * staging_row_bytes(view, options.format);
  const bool overflows = __builtin_mul_overflow(bytes, options.max_tokens, &bytes) ||
                         __builtin_mul_overflow(bytes, options.slots, &bytes);
  expects(!overflows, fmt::format("Prefetcher: {} slots of {} tokens are more bytes than 63 bits "
                                  "count",
                                  options.slots, options.max_tokens));
  return bytes;
}

std::shared_ptr<detail::PrefetchRing> make_ring(const Table& table,
                                                const PrefetchOptions& options) {
  switch (table.device().kind) {
    case DeviceKind::Cpu: return detail::make_prefetch_ring_cpu(table, options);
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) return detail::make_prefetch_ring_cuda(table, options);
      throw Error(ErrorCode::Unsupported, "Prefetcher: built without PENSTOCK_WITH_CUDA");
  }
  throw Error(ErrorCode::Internal, "Prefetcher: not a DeviceKind");
}

const detail::PrefetchSlot& held(const std::shared_ptr<detail::PrefetchSlot>& slot) {
  expects(slot != nullptr, "Ticket: found an empty ticket, needed: one from Prefetcher::start");
  return *slot;
}

}  // namespace

Ticket::Ticket() noexcept = default;
Ticket::Ticket(std::shared_ptr<detail::PrefetchSlot> slot) noexcept : slot_(std::move(slot)) {}
Ticket::Ticket(Ticket&&) noexcept = default;

Ticket::~Ticket() {
  release();
}

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    release();
    slot_ = std::move(other.slot_);
  }
  return *this;
}

void Ticket::wait(StreamRef consumer) {
  held(slot_);
  slot_->wait(consumer);
}

std::span<const std::byte> Ticket::rows() const {
  return held(slot_).rows();
}

std::int64_t Ticket::tokens() const {
  return held(slot_).tokens();
}

void Ticket::release(StreamRef consumer) {
  if (slot_ == nullptr) return;
  slot_->release(consumer);
  slot_.reset();
}

std::chrono::nanoseconds Ticket::read_time() const {
  return held(slot_).read_time();
}

std::chrono::nanoseconds Ticket::wait_time() const {
  return held(slot_).wait_time();
}

struct Prefetcher::State {
  Table table;
  PrefetchOptions options;
  std::int64_t staging_bytes = 0;
  std::shared_ptr<detail::PrefetchRing> ring;
};

Prefetcher::Prefetcher(Table table, const PrefetchOptions& options) {
  const std::int64_t bytes = ring_bytes(table.view(), options);
  auto ring = make_ring(table, options);
  state_ = std::make_unique<State>(State{.table = std::move(table),
                                         .options = options,
                                         .staging_bytes = bytes,
                                         .ring = std::move(ring)});
}

Prefetcher::~Prefetcher() = default;
Prefetcher::Prefetcher(Prefetcher&&) noexcept = default;
Prefetcher& Prefetcher::operator=(Prefetcher&&) noexcept = default;

Ticket Prefetcher::start(const RowIds& ids, StreamRef producer, const std::int32_t* num_tokens) {
  const TableView& view = state_->table.view();
  const PrefetchOptions& options = state_->options;
  expects(ids.tokens >= 0 && ids.tokens <= options.max_tokens,
          fmt::format("Prefetcher::start: found {} tokens, needed: 0 to max_tokens = {}",
                      ids.tokens, options.max_tokens));
  expects(ids.columns >= view.column_end && (ids.tokens <= 1 || ids.token_stride >= ids.columns) &&
              (ids.tokens == 0 || ids.data != nullptr),
          fmt::format("Prefetcher::start: found ids of {} columns, {} ids apart; needed: all {} "
                      "columns of the table",
                      ids.columns, ids.token_stride, state_->table.spec().head_sizes.size()));
  auto slot = state_->ring->start(ids, producer, num_tokens);
  expects(slot != nullptr, fmt::format("Prefetcher::start: all {} slots are held by tickets; "
                                       "needed: a free one",
                                       options.slots));
  return Ticket(std::move(slot));
}

const Table& Prefetcher::table() const {
  return state_->table;
}

const PrefetchOptions& Prefetcher::options() const {
  return state_->options;
}

std::int64_t Prefetcher::staging_bytes() const {
  return state_->staging_bytes;
}

}  // namespace penstock
