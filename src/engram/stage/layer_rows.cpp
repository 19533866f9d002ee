#include "engram/stage/layer_rows.hpp"

#include <fmt/format.h>

#include <utility>

#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "penstock/reader/gather_rows.hpp"

namespace penstock::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// Merges `sources` copies of a token's records, of which at most one is not all zeros: each row
/// lies in one shard, and the others stage zeros for it.
void merge_sources(std::span<std::byte> tokens, int sources, std::int64_t token_bytes) {
  const auto width = static_cast<std::size_t>(token_bytes);
  const std::size_t num_tokens = tokens.size() / (width * static_cast<std::size_t>(sources));
  for (std::size_t token = 0; token < num_tokens; ++token) {
    // Compacts in place: token t moves from t * sources * width to t * width, never forwards.
    const std::byte* from = tokens.data() + token * width * static_cast<std::size_t>(sources);
    std::byte* to = tokens.data() + token * width;
    for (std::size_t i = 0; i < width; ++i) {
      std::byte merged{0};
      for (std::size_t source = 0; source < static_cast<std::size_t>(sources); ++source) {
        merged |= from[source * width + i];
      }
      to[i] = merged;
    }
  }
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
  exchanged_.resize(static_cast<std::size_t>(tokens * sources * staged_token_bytes()));
  return exchanged_;
}

std::span<const BF16> LayerRows::finish(const StageGroups& groups, const TokenRange& mine,
                                        StreamRef stream) {
  if (finished_) return *finished_;
  const auto staged = wait(stream);
  const auto begin = Clock::now();
  finished_ = bring_together(groups, staged, mine);
  times_.exchange += Clock::now() - begin;
  return *finished_;
}

std::span<const BF16> LayerRows::bring_together(const StageGroups& groups,
                                                std::span<const std::byte> staged,
                                                const TokenRange& mine) {
  const int head_dim = table().view().head_dim;
  if (!is_packed_) {
    return {reinterpret_cast<const BF16*>(staged.data()), staged.size() / sizeof(BF16)};
  }
  const auto records = gather(groups, groups.exchange ? merge_exchanged(groups) : staged, mine);
  const std::int64_t record_bytes = row_record_bytes(head_dim);
  const std::int64_t token_elements = std::int64_t{columns_} * head_dim;
  rows_.resize(static_cast<std::size_t>(mine.count * token_elements));
  const auto source_token_bytes =
      mine.count == 0 ? 0 : static_cast<std::int64_t>(records.size()) / mine.count;
  constexpr std::int64_t kTokensPerRange = 16;
  parallel_for(mine.count, kTokensPerRange, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t token = first; token < end; ++token) {
      // The first columns_ records; what follows is the padding of the last shards.
      const auto from = records.subspan(static_cast<std::size_t>(token * source_token_bytes),
                                        static_cast<std::size_t>(columns_ * record_bytes));
      const auto to = std::span(rows_).subspan(static_cast<std::size_t>(token * token_elements),
                                               static_cast<std::size_t>(token_elements));
      unpack_rows(from, head_dim, std::as_writable_bytes(to));
    }
  });
  return rows_;
}

std::span<const std::byte> LayerRows::merge_exchanged(const StageGroups& groups) {
  if (!is_row_sharded_) return exchanged_;
  const int sources = groups.exchange->size();
  merge_sources(exchanged_, sources, staged_token_bytes());
  return std::span(exchanged_).first(exchanged_.size() / static_cast<std::size_t>(sources));
}

std::span<const std::byte> LayerRows::gather(const StageGroups& groups,
                                             std::span<const std::byte> rows,
                                             const TokenRange& mine) {
  if (!groups.gather) return rows;
  const int sources = groups.gather->size();
  const int exchange_size = groups.exchange ? groups.exchange->size() : 1;
  const std::int64_t token_bytes = staged_token_bytes() * (is_row_sharded_ ? 1 : exchange_size);
  gathered_.resize(static_cast<std::size_t>(mine.count * sources * token_bytes));
  if (is_sequence_parallel_) {
    gather_chunk_columns(*groups.gather, rows, token_bytes, gathered_);
  } else {
    gather_columns(*groups.gather, rows, token_bytes, gathered_);
  }
  if (!is_row_sharded_) return gathered_;
  merge_sources(gathered_, sources, token_bytes);
  return std::span(gathered_).first(static_cast<std::size_t>(mine.count * token_bytes));
}

}  // namespace penstock::detail
