#include "penstock/engram/engram_stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/failure_point.hpp"
#include "engram/stage/agree_stage.hpp"
#include "engram/stage/layer_rows.hpp"
#include "engram/stage/stage_groups.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/engram_injection.hpp"
#include "penstock/engram/engram_layer.hpp"
#include "penstock/engram/engram_weights.hpp"

namespace penstock {
namespace {

using Clock = std::chrono::steady_clock;

/// One layer of the stage.
struct StageLayer {
  int layer_id = 0;
  int hash_index = 0;  ///< Its place among all Engram layers of the model.
  detail::LayerRows rows;
  EngramInjection injection;
};

TableOptions table_options(const detail::StageGroups& groups, const EngramStageOptions& options) {
  TableOptions table;
  table.placement = options.placement;
  table.shard = groups.shard;
  table.device = options.device;
  table.group = groups.sharing.get();
  table.may_fall_back = options.may_fall_back;
  table.backing = options.backing;
  return table;
}

StageLayer open_layer(const ModelDir& model, int layer_id, const detail::StageGroups& groups,
                      const EngramStageOptions& options) {
  const TableSpec spec = engram_table_spec(model.config(), layer_id);
  auto source = options.rows ? options.rows(layer_id) : open_checkpoint_rows(model, layer_id);
  const Table table = Table::open(spec, std::move(source), table_options(groups, options));
  const int hash_index = model.config().engram->hash_layer_index(layer_id).value();
  return {
      layer_id, hash_index, detail::LayerRows(table, groups, options),
      EngramInjection(load_engram_weights(model, layer_id), options.device, options.max_tokens)};
}

}  // namespace

struct EngramStage::State {
  EngramStageOptions options;
  int hash_layers = 0;
  int columns = 0;
  detail::StageGroups groups;
  std::vector<int> layer_ids;
  std::vector<StageLayer> layers;
  Buffer slot_ids;  ///< [exchange size * slot, hash_layers, columns], on options.device.
  TokenSlots slots;
  TokenRange mine;
  bool is_exchanged = false;  ///< The rows of this step have come back.

  StageLayer& layer(int layer_id) {
    const auto found = std::ranges::find(layers, layer_id, &StageLayer::layer_id);
    if (found != layers.end()) return *found;
    throw Error(ErrorCode::NotFound,
                fmt::format("EngramStage: layer {} is not of this stage", layer_id));
  }

  std::span<std::int32_t> slot_ids_for(std::int64_t count) {
    const auto ids = static_cast<std::size_t>(count);
    const std::size_t bytes = ids * sizeof(std::int32_t);
    if (slot_ids.bytes() < bytes) slot_ids = Buffer::allocate(options.device, bytes);
    return slot_ids.as<std::int32_t>().first(ids);
  }

  /// Sends every layer's rows to the tokens' owners at once, when the first of them is needed.
  void exchange_layers(StreamRef stream) {
    const int sources = groups.exchange->size();
    const auto tokens = slots.counts[static_cast<std::size_t>(groups.exchange->rank())];
    std::vector<std::span<const std::byte>> staged;
    std::vector<std::span<std::byte>> received;
    for (StageLayer& one : layers) staged.push_back(one.rows.wait(stream));
    const auto begin = Clock::now();
    for (StageLayer& one : layers) received.push_back(one.rows.room_for_exchange(tokens, sources));
    exchange_rows(*groups.exchange, slots, staged, layers.front().rows.staged_token_bytes(),
                  received, stream);
    is_exchanged = true;
    layers.front().rows.times().exchange += Clock::now() - begin;
  }
};

EngramStage::EngramStage(std::unique_ptr<State> state) : state_(std::move(state)) {}
EngramStage::~EngramStage() = default;
EngramStage::EngramStage(EngramStage&&) noexcept = default;
EngramStage& EngramStage::operator=(EngramStage&&) noexcept = default;

EngramStage EngramStage::open(const ModelDir& model, const ParallelConfig& parallel,
                              Communicator& world, std::vector<int> layers,
                              const EngramStageOptions& options) {
  validate(parallel);
  if (parallel.world_size() != world.size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("EngramStage: {} make {} ranks, the communicator has {}",
                            to_string(parallel), parallel.world_size(), world.size()));
  }
  expects(model.config().engram.has_value(), "EngramStage: config.json has no engram_* keys");
  detail::agree_on_stage(world, parallel, layers, options);
  auto state = std::make_unique<State>();
  state->options = options;
  state->hash_layers = static_cast<int>(model.config().engram->layer_ids.size());
  state->columns = model.config().engram->num_columns();
  state->layer_ids = std::move(layers);
  // Splitting is collective over the world, so that stages without Engram take part as well.
  state->groups = detail::make_stage_groups(parallel, world, options);
  for (const int layer_id : state->layer_ids) {
    state->layers.push_back(open_layer(model, layer_id, state->groups, options));
  }
  return EngramStage(std::move(state));
}

void EngramStage::start(std::span<const std::int32_t> row_ids, StreamRef stream) {
  State& state = *state_;
  if (state.layers.empty()) return;
  detail::failure_point(detail::FailurePoint::StepIds);
  const std::int64_t width = std::int64_t{state.hash_layers} * state.columns;
  const std::int64_t tokens = static_cast<std::int64_t>(row_ids.size()) / width;
  if (tokens * width != static_cast<std::int64_t>(row_ids.size())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("EngramStage: {} row ids are not [T, {}, {}]", row_ids.size(),
                            state.hash_layers, state.columns));
  }
  const auto& groups = state.groups;
  state.mine = state.options.is_sequence_parallel
                   ? sequence_chunk(tokens, groups.tp_rank, groups.tp_size)
                   : TokenRange{0, tokens};
  const std::int32_t* ids = row_ids.data();
  std::int64_t staged_tokens = tokens;
  if (groups.exchange) {
    state.slots = agree_slots(*groups.exchange, tokens, state.options.max_tokens);
    staged_tokens = groups.exchange->size() * state.slots.slot;
    const auto slot_ids = state.slot_ids_for(staged_tokens * width);
    gather_row_ids(*groups.exchange, state.slots, row_ids, slot_ids, stream);
    ids = slot_ids.data();
  } else if (!groups.gather) {
    // Every column is read here, so only for the tokens that this rank keeps.
    ids += state.mine.first * width;
    staged_tokens = state.mine.count;
  }
  detail::failure_point(detail::FailurePoint::StepReads);
  state.is_exchanged = false;
  for (StageLayer& layer : state.layers) {
    // Without tokens there may be no ids to point into.
    layer.rows.start(
        {.data =
             staged_tokens == 0 ? nullptr : ids + std::int64_t{layer.hash_index} * state.columns,
         .tokens = staged_tokens,
         .columns = state.columns,
         .token_stride = width},
        stream);
  }
}

TokenRange EngramStage::tokens() const {
  return state_->mine;
}

std::span<const BF16> EngramStage::rows(int layer_id, StreamRef stream) {
  State& state = *state_;
  StageLayer& layer = state.layer(layer_id);
  detail::failure_point(detail::FailurePoint::StepRows);
  if (state.groups.exchange && !state.is_exchanged) state.exchange_layers(stream);
  return layer.rows.finish(state.groups, state.mine, stream);
}

void EngramStage::forward(int layer_id, std::span<const BF16> hidden,
                          std::span<const std::uint8_t> mask, std::span<BF16> out,
                          StreamRef stream) {
  StageLayer& layer = state_->layer(layer_id);
  const std::span<const BF16> found = rows(layer_id, stream);
  detail::failure_point(detail::FailurePoint::StepInject);
  const auto begin = Clock::now();
  layer.injection.project(found, stream);
  const auto projected = Clock::now();
  layer.injection.inject(hidden, mask, out, stream);
  layer.rows.times().project += projected - begin;
  layer.rows.times().gate += Clock::now() - projected;
}

std::span<const int> EngramStage::layers() const {
  return state_->layer_ids;
}

int EngramStage::node() const {
  return state_->groups.node;
}

int EngramStage::sharers() const {
  return state_->groups.sharing ? state_->groups.sharing->size() : 1;
}

const Table& EngramStage::table(int layer_id) const {
  return state_->layer(layer_id).rows.table();
}

std::int64_t EngramStage::staging_bytes(int layer_id) const {
  return state_->layer(layer_id).rows.staging_bytes();
}

EngramStageTimes EngramStage::times(int layer_id) const {
  return state_->layer(layer_id).rows.times();
}

}  // namespace penstock
