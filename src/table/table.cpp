#include "penstock/table/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <chrono>
#include <span>
#include <utility>

#include "core/build_config.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"
#include "table/placements/place_shard.hpp"
#include "table/placements/placement_order.hpp"
#include "table/placements/placements_cuda.hpp"

namespace penstock {
namespace {

using detail::PlacedShard;
using detail::ShardRequest;
using detail::Stage;
using detail::StageError;
using detail::StageRunner;

// Row ids are int32.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 31;

void check_spec(const TableSpec& spec, const RowSource* rows, const TableOptions& options) {
  expects(rows != nullptr, "rows is null, needed: a source of rows");
  expects(spec.head_dim >= 32 && spec.head_dim % 32 == 0,
          fmt::format("head_dim is {}, needed: a positive multiple of 32", spec.head_dim));
  expects(
      spec.num_rows >= 0 && spec.num_rows <= kMaxRows,
      fmt::format("the table has {} rows, needed: 0 to 2^31, as row ids are int32", spec.num_rows));
  expects(rows->num_rows() == spec.num_rows && rows->head_dim() == spec.head_dim,
          fmt::format("{} has {} rows of {} elements, needed: {} of {}", rows->description(),
                      rows->num_rows(), rows->head_dim(), spec.num_rows, spec.head_dim));
  expects(options.shard.count >= 1 && options.shard.index >= 0 &&
              options.shard.index < options.shard.count,
          fmt::format("found shard {} of {}, needed: 0 <= index < count", options.shard.index,
                      options.shard.count));
  const bool may_be_shared =
      options.placement == Placement::HostShared || options.placement == Placement::Auto;
  expects(options.backing == HostBacking::Auto || may_be_shared,
          fmt::format("backing {} is named for placement {}, needed: host_shared",
                      to_string(options.backing), to_string(options.placement)));
  const std::int64_t owned = column_shards(spec.head_sizes, 1).front().row_end;
  expects(owned <= spec.num_rows, fmt::format("the columns have {} rows together, needed: at most "
                                              "the table's {}",
                                              owned, spec.num_rows));
}

bool is_row_sharded(const TableSpec& spec, const TableShard& shard) {
  return !has_column_shards(static_cast<int>(spec.head_sizes.size()), shard.count);
}

/// The view of a shard, without its memory.
TableView shard_bounds(const TableSpec& spec, const TableShard& shard) {
  TableView view;
  view.num_rows = spec.num_rows;
  view.head_dim = spec.head_dim;
  if (is_row_sharded(spec, shard)) {
    const RowRange range = row_shard(spec.num_rows, shard.index, shard.count);
    view.row_begin = range.begin;
    view.row_end = range.end;
    view.column_end = view.local_columns = static_cast<int>(spec.head_sizes.size());
    return view;
  }
  const ColumnShard columns =
      column_shards(spec.head_sizes, shard.count)[static_cast<std::size_t>(shard.index)];
  view.row_begin = columns.row_start;
  view.row_end = columns.row_end;
  view.column_begin = columns.column_start;
  view.column_end = columns.column_end;
  view.local_columns = columns.local_columns;
  return view;
}

/// What all ranks must have in common.
std::string arguments_text(const TableSpec& spec, const TableOptions& options) {
  return fmt::format(
      "layer {}, {} rows of {} elements, columns of [{}] rows, shard {} of {}, "
      "placement {}, backing {}, fallback {}, {}",
      spec.layer_id, spec.num_rows, spec.head_dim, fmt::join(spec.head_sizes, ", "),
      options.shard.index, options.shard.count, to_string(options.placement),
      to_string(options.backing), options.may_fall_back ? "allowed" : "refused",
      options.device.kind == DeviceKind::Cpu ? "cpu" : "cuda");
}

/// Compares the arguments of all ranks, and takes what a rank could still fail to get later.
void agree_on_arguments(const TableSpec& spec, const RowSource* rows, const TableOptions& options,
                        StageRunner& stages, Buffer& counter) {
  const auto texts = stages.run(Stage::Agree, [&](const detail::StopFlag&) {
    check_spec(spec, rows, options);
    counter = Buffer::zeros(options.device, sizeof(std::uint64_t));
    return arguments_text(spec, options);
  });
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    expects(texts[rank] == texts[0],
            fmt::format("Table::open: rank 0 opens {}; rank {} opens {}; needed: the same",
                        texts[0], rank, texts[rank]));
  }
}

PlacedShard place_on_cuda(Placement placement, const ShardRequest& request, StageRunner& stages) {
  if constexpr (build::has_cuda) {
    if (request.device.kind == DeviceKind::Cuda) {
      return placement == Placement::Device ? detail::place_device_cuda(request, stages)
                                            : detail::place_peer_cuda(request, stages);
    }
  }
  stages.run(Stage::Create, [&](const detail::StopFlag&) -> std::string {
    throw Error(
        ErrorCode::Unsupported,
        fmt::format("placement {} needs a CUDA device{}, found device {}; host_shared, host "
                    "and file would work",
                    to_string(placement), build::has_cuda ? "" : " and a build with CUDA",
                    to_string(request.device)));
  });
  throw Error(ErrorCode::Internal, "Table::open: a stage that always fails went through");
}

PlacedShard place(Placement placement, const ShardRequest& request, StageRunner& stages) {
  switch (placement) {
    case Placement::Device:
    case Placement::Peer: return place_on_cuda(placement, request, stages);
    case Placement::Host: return detail::place_host(request, stages);
    case Placement::HostShared: return detail::place_host_shared(request, stages);
    case Placement::File: return detail::place_file(request, stages);
    case Placement::Auto: break;
  }
  throw Error(ErrorCode::Internal, "Table::open: not a placement that can be placed");
}

/// Whether another placement may succeed where one failed in this way. Equal on all ranks.
bool may_try_another(const StageError& error) {
  return error.cause() == ErrorCode::Unsupported || error.cause() == ErrorCode::OutOfMemory;
}

/// Places the shard where the first of the candidates that can be had says, and fills in which.
PlacedShard place_first(const detail::PlacementOrder& candidates, const ShardRequest& request,
                        StageRunner& stages, TableStatus& status) {
  for (std::size_t i = 0;; ++i) {
    status.placement = candidates.order[i];
    try {
      return place(status.placement, request, stages);
    } catch (const StageError& error) {
      const bool is_last = i + 1 == candidates.order.size();
      if (is_last || !may_try_another(error)) throw;
      const auto message =
          fmt::format("placement {} in place of {}: {}", to_string(candidates.order[i + 1]),
                      to_string(status.placement), error.what());
      if (i + 1 < candidates.num_asked_for) continue;
      status.degraded = message;
      log(LogLevel::Warning, "DEGRADED: " + message);
    }
  }
}

}  // namespace

struct Table::State {
  TableSpec spec;
  Device device;
  TableView view;
  TableStatus status;
  std::shared_ptr<const void> memory;
  Buffer rejected;  ///< One 64-bit counter, where the reader runs.
};

Table::Table(std::shared_ptr<State> state) : state_(std::move(state)) {}

Table Table::open(const TableSpec& spec, std::shared_ptr<const RowSource> rows,
                  const TableOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  StageRunner stages(options.group, "Table::open");
  auto state = std::make_shared<State>();
  agree_on_arguments(spec, rows.get(), options, stages, state->rejected);
  const ShardRequest request{.rows = std::move(rows),
                             .bounds = shard_bounds(spec, options.shard),
                             .device = options.device,
                             .backing = options.backing};
  PlacedShard placed =
      place_first(detail::placements_to_try(options), request, stages, state->status);
  state->spec = spec;
  state->device = options.device;
  state->view = placed.view;
  state->view.rejected = reinterpret_cast<std::uint64_t*>(state->rejected.data());
  state->memory = std::move(placed.memory);
  state->status.backing = std::move(placed.backing);
  state->status.backing_choice = std::move(placed.backing_choice);
  state->status.resident_bytes = placed.resident_bytes;
  state->status.shared_bytes = placed.shared_bytes;
  state->status.is_row_sharded = is_row_sharded(spec, options.shard);
  state->status.load_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return Table(std::move(state));
}

const TableSpec& Table::spec() const {
  return state_->spec;
}

const TableView& Table::view() const {
  return state_->view;
}

Device Table::device() const {
  return state_->device;
}

const TableStatus& Table::status() const {
  return state_->status;
}

std::uint64_t Table::rejected_ids() const {
  if (state_->device.kind == DeviceKind::Cpu) {
    return std::atomic_ref(*state_->view.rejected).load(std::memory_order_relaxed);
  }
  std::uint64_t count = 0;
  copy_bytes(std::as_writable_bytes(std::span(&count, 1)), state_->rejected);
  return count;
}

std::shared_ptr<const void> Table::keep_alive() const {
  return state_;
}

}  // namespace penstock
