#include "engram/stage/layer_rows.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>
#include <vector>

#include "engram/stage/merge_sources.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "penstock/reader/gather_rows.hpp"

namespace penstock::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// Grows `room` to at least `bytes`; what it held is gone then.
std::span<std::byte> room_of(Buffer& room, Device device, std::int64_t bytes) {
  const auto size = static_cast<std::size_t>(bytes);
  if (room.bytes() < size) {
    room.reset();  // first, so that both are never there together
    room = Buffer::allocate(device, size);
  }
  return room.as<std::byte>().first(size);
}

PrefetchOptions prefetch_options(const StageGroups& groups, const EngramStageOptions& options,
                                 bool is_packed) {
  PrefetchOptions prefetch;
  const int replicas = groups.exchange ? groups.exchange->size() : 1;
  prefetch.max_tokens = options.max_tokens * replicas;
  prefetch.slots = 1;  // a step's rows are used before the next step starts
  prefetch.format = is_packed ? RowFormat::Packed : RowFormat::Bf16;
  return prefetch;
}

}  // namespace

LayerRows::LayerRows(const Table& table, const StageGroups& groups,
                     const EngramStageOptions& options)
    : prefetcher_(table, prefetch_options(groups, options,
                                          groups.exchange != nullptr || groups.gather != nullptr)),
      is_packed_(groups.exchange != nullptr || groups.gather != nullptr),
      is_row_sharded_(table.status().is_row_sharded),
      is_sequence_parallel_(options.is_sequence_parallel),
      columns_(static_cast<int>(table.spec().head_sizes.size())) {}

std::int64_t LayerRows::staged_token_bytes() const {
  const TableView& view = table().view();
  return view.local_columns *
         staging_row_bytes(view, is_packed_ ? RowFormat::Packed : RowFormat::Bf16);
}

void LayerRows::start(const RowIds& ids, StreamRef stream) {
  finished_.reset();
  if (ticket_) ticket_->release(stream);  // what `stream` still reads of it comes first
  ticket_.reset();
  has_waited_ = false;
  ticket_ = prefetcher_.start(ids, stream);
}

std::span<const std::byte> LayerRows::wait(StreamRef stream) {
  expects(ticket_.has_value(),
          fmt::format("EngramStage: the rows of layer {} are asked for before start(); needed: the "
                      "row ids of the step, on every stage that has Engram",
                      table().spec().layer_id));
  if (!has_waited_) {
    ticket_->wait(stream);
    times_.read += ticket_->read_time();
    times_.wait += ticket_->wait_time();
    has_waited_ = true;
  }
  return ticket_->rows();
}

std::span<std::byte> LayerRows::room_for_exchange(std::int64_t tokens, int sources) {
  exchanged_ = room_of(exchange_room_, device(), tokens * sources * staged_token_bytes());
  return exchanged_;
}

std::span<const BF16> LayerRows::finish(const StageGroups& groups, const TokenRange& mine,
                                        StreamRef stream) {
  if (finished_) return *finished_;
  const auto staged = wait(stream);
  const auto begin = Clock::now();
  finished_ = bring_together(groups, staged, mine, stream);
  times_.exchange += Clock::now() - begin;
  return *finished_;
}

std::span<const BF16> LayerRows::bring_together(const StageGroups& groups,
                                                std::span<const std::byte> staged,
                                                const TokenRange& mine, StreamRef stream) {
  if (!is_packed_) {
    return {reinterpret_cast<const BF16*>(staged.data()), staged.size() / sizeof(BF16)};
  }
  const auto own = groups.exchange ? merge_exchanged(groups, stream) : staged;
  return unpack(gather(groups, own, mine, stream), mine.count, stream);
}

/// Records [tokens, some columns and padding] as bf16 rows [tokens, columns].
std::span<const BF16> LayerRows::unpack(std::span<const std::byte> records, std::int64_t tokens,
                                        StreamRef stream) {
  const int head_dim = table().view().head_dim;
  const std::int64_t record_bytes = row_record_bytes(head_dim);
  const std::int64_t row_bytes = std::int64_t{columns_} * head_dim * std::int64_t{sizeof(BF16)};
  const auto rows = room_of(row_room_, device(), tokens * row_bytes);
  const std::span<const BF16> result{reinterpret_cast<const BF16*>(rows.data()),
                                     rows.size() / sizeof(BF16)};
  if (tokens == 0) return result;
  const std::int64_t token_bytes = static_cast<std::int64_t>(records.size()) / tokens;
  // The records are a small table, and its rows are read in their order. Of every token the first
  // columns_ are meant; what follows is the padding of the last shards.
  TableView view;
  view.values[0] = records.data();
  view.scales[0] = records.data() + head_dim;
  view.value_stride = view.scale_stride = record_bytes;
  view.rows_per_part = view.row_end = view.num_rows = tokens * (token_bytes / record_bytes);
  view.head_dim = head_dim;
  view.column_end = view.local_columns = columns_;
  gather_rows(view,
              {.data = numbers(view.num_rows),
               .tokens = tokens,
               .columns = columns_,
               .token_stride = token_bytes / record_bytes},
              RowFormat::Bf16, rows, device(), stream);
  return result;
}

/// 0, 1, 2, ... on the device.
const std::int32_t* LayerRows::numbers(std::int64_t count) {
  if (numbers_.bytes() / sizeof(std::int32_t) < static_cast<std::size_t>(count)) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    numbers_ = Buffer::copy_of(std::as_bytes(std::span(all)), device());
  }
  return numbers_.as<std::int32_t>().data();
}

/// What each source sent, or the one row of each that is not zeros.
std::span<const std::byte> LayerRows::merged(std::span<const std::byte> rows, int sources,
                                             std::int64_t token_bytes, Buffer& room,
                                             StreamRef stream) {
  if (!is_row_sharded_) return rows;
  const auto bytes = static_cast<std::int64_t>(rows.size()) / sources;
  const auto to = room_of(room, device(), bytes);
  merge_sources(rows, sources, token_bytes, to, device(), stream);
  return to;
}

std::span<const std::byte> LayerRows::merge_exchanged(const StageGroups& groups, StreamRef stream) {
  return merged(exchanged_, groups.exchange->size(), staged_token_bytes(), exchange_merge_room_,
                stream);
}

std::span<const std::byte> LayerRows::gather(const StageGroups& groups,
                                             std::span<const std::byte> rows,
                                             const TokenRange& mine, StreamRef stream) {
  if (!groups.gather) return rows;
  const int sources = groups.gather->size();
  const int exchange_size = groups.exchange ? groups.exchange->size() : 1;
  const std::int64_t token_bytes = staged_token_bytes() * (is_row_sharded_ ? 1 : exchange_size);
  const auto gathered = room_of(gather_room_, device(), mine.count * sources * token_bytes);
  if (is_sequence_parallel_) {
    gather_chunk_columns(*groups.gather, rows, token_bytes, gathered, stream);
  } else {
    gather_columns(*groups.gather, rows, token_bytes, gathered, stream);
  }
  return merged(gathered, sources, token_bytes, gather_merge_room_, stream);
}

}  // namespace penstock::detail
