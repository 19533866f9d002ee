#include "penstock/gate/gate_linear.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/build_config.hpp"
#include "gate/agreement.hpp"
#include "gate/gate_arguments.hpp"
#include "gate/gate_state.hpp"
#include "penstock/core/error.hpp"

namespace penstock {

using detail::Arena;
using detail::CallCounts;
using detail::GateContext;
using detail::GateRun;
using detail::IdenticalGather;
using detail::PeerRows;
using detail::WeightSlice;

struct GateLinear::State {
  GateOptions options;
  GateContext gate;
  WeightPart part = WeightPart::Full;
  GateRates rates;
  std::vector<GateStrategy> candidates;
  std::unique_ptr<detail::GateOperations> operations;
  std::unique_ptr<PeerRows> weight;
  std::shared_ptr<WeightStream> stream;
  CallCounts counts;  ///< Of the call under way; kept for its memory.
  std::size_t peak_workspace = 0;
  bool may_exchange_tokens = true;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (stream && gate.layer.index >= 0) stream->impl().remove(gate.layer);
  }

  bool is_candidate(GateStrategy strategy) const {
    return std::ranges::find(candidates, strategy) != candidates.end();
  }

  /// Whether the strategy of a call depends on which of its rows are identical.
  bool splits_identical() const {
    return candidates.size() > 1 && is_candidate(GateStrategy::IdenticalRows);
  }

  /// Whether calls need to know the tokens of other ranks.
  bool needs_counts() const {
    return is_candidate(GateStrategy::NShard) || is_candidate(GateStrategy::KShard);
  }

  void take_weight(std::span<const BF16> given, WeightPart given_part);
  void join_stream();
  void choose_candidates();
  void take_workspace();
  std::span<std::byte> workspace() const {
    return options.workspace.empty() ? stream->impl().workspace() : options.workspace;
  }
  GatePlan plan(std::int64_t tokens, std::int64_t identical) const;
  void run(GateStrategy strategy, const GateRun& run);
};

/// Keeps this rank's slice where its strategies want it.
void GateLinear::State::take_weight(std::span<const BF16> given, WeightPart given_part) {
  const detail::WeightRegion from = weight_region(gate, given_part);
  const detail::WeightRegion wanted =
      weight_region(gate, gate.ranks == 1 ? WeightPart::Full : part);
  const std::int64_t offset = (wanted.rows.begin - from.rows.begin) * from.columns.size() +
                              (wanted.columns.begin - from.columns.begin);
  const WeightSlice slice{.data = given.data() + offset,
                          .stride = from.columns.size(),
                          .rows = wanted.rows.size(),
                          .columns = wanted.columns.size()};
  const bool may_travel =
      gate.ranks > 1 && part == WeightPart::Rows &&
      (options.strategy == GateStrategy::Auto || options.strategy == GateStrategy::WeightGather);
  if constexpr (build::has_cuda) {
    if (options.device.kind == DeviceKind::Cuda) {
      weight = may_travel ? detail::share_rows_cuda(*gate.comm, options.device, slice,
                                                    gate.shape.output_size)
                          : detail::keep_rows_cuda(options.device, slice);
      return;
    }
  }
  weight = may_travel ? share_rows_cpu(gate.comm, slice) : detail::keep_rows_cpu(slice);
}

/// Joins the weight stream, and with it the gather of identical rows.
void GateLinear::State::join_stream() {
  detail::agree(gate.comm, "GateLinear", [&]() -> detail::AgreedFields {
    stream = options.weight_stream
                 ? options.weight_stream
                 : std::make_shared<WeightStream>(gate.comm, gate.shape, options.device);
    gate.stream = &stream->impl();
    gate.layer.shape = gate.shape;
    gate.layer.rows = weight.get();
    return {};
  });
  if (gate.ranks == 1 || part != WeightPart::Rows) return;
  IdenticalGather* gather = gate.stream->identical_gather(*gate.comm);
  if (gather != nullptr && gather->fits(gate.shape)) gate.gather = gather;
}

/// Chooses what calls may use, and the block of tokens, within the limit on memory.
void GateLinear::State::choose_candidates() {
  const bool is_cpu = options.device.kind == DeviceKind::Cpu;
  detail::Ways ways;
  ways.exchange = gate.comm != nullptr && gate.comm->device().kind == options.device.kind;
  ways.identical = ways.exchange || gate.gather != nullptr;
  ways.gather_weight = weight->are_readable() || (is_cpu && ways.exchange);
  std::size_t travel_bytes = 0;
  const auto choose = [&] {
    candidates = detail::candidates_for(options.strategy, part, gate.ranks, ways);
    travel_bytes =
        is_candidate(GateStrategy::WeightGather) ? gate.stream->bytes_with(gate.layer) : 0;
  };
  choose();
  if (options.strategy == GateStrategy::Auto && options.max_temp_bytes &&
      travel_bytes > *options.max_temp_bytes && candidates.size() > 1) {
    ways.gather_weight = false;
    choose();
  }
  if (candidates.empty()) {
    throw Error(
        ErrorCode::Unsupported,
        fmt::format("GateLinear: strategy {} on {} needs ranks that reach each other's "
                    "memory or an nccl communicator; the communicator is {}",
                    to_string(options.strategy), to_string(options.device), gate.comm->engine()));
  }
  may_exchange_tokens = ways.exchange;
  if (options.overlaps_blocks && is_candidate(GateStrategy::KShard)) {
    gate.side = gate.stream->side_stream();
  }
  gate.block_tokens = detail::choose_block(gate, candidates, travel_bytes, options.max_temp_bytes);
  if (is_candidate(GateStrategy::WeightGather)) gate.stream->add(gate.layer);
}

void GateLinear::State::take_workspace() {
  const std::size_t needed = detail::workspace_of_any(gate, candidates);
  if (options.workspace.empty()) {
    gate.stream->reserve_workspace(needed);
  } else if (options.workspace.size() < needed) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: workspace has {} bytes, needs {}",
                            options.workspace.size(), needed));
  }
}

GatePlan GateLinear::State::plan(std::int64_t tokens, std::int64_t identical) const {
  return plan_gate(
      {.shape = gate.shape,
       .ranks = gate.ranks,
       .tokens = tokens,
       .identical_tokens = identical,
       .resident = part,
       .rates = rates,
       .window_seconds = options.window_seconds,
       .max_temp_bytes = options.max_temp_bytes,
       .block_tokens = gate.block_tokens,
       .overlaps_blocks = gate.side != nullptr,
       .may_exchange_tokens = may_exchange_tokens,
       .may_gather_weight = is_candidate(GateStrategy::WeightGather),
       .peers_are_readable = weight->are_readable() && options.device.kind == DeviceKind::Cpu,
       .k_shard_wire_bytes = element_bytes(gate.k_shard_sums),
       .n_shard_wire_bytes = element_bytes(gate.n_shard_projections)});
}

void GateLinear::State::run(GateStrategy strategy, const GateRun& run) {
  Arena arena(workspace());
  switch (strategy) {
    case GateStrategy::Auto: break;
    case GateStrategy::Replicated: run_replicated(gate, run, arena); break;
    case GateStrategy::KShard: run_k_shard(gate, run, arena); break;
    case GateStrategy::NShard: run_n_shard(gate, run, arena); break;
    case GateStrategy::WeightGather: run_weight_gather(gate, run, arena); break;
    case GateStrategy::IdenticalRows: run_identical_rows(gate, run, arena); break;
  }
  peak_workspace = std::max(peak_workspace, arena.used());
}

GateLinear::GateLinear(const GateShape& shape, std::span<const BF16> weight, WeightPart part,
                       Communicator* comm, const GateOptions& options)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.options = options;
  s.gate.shape = shape;
  s.gate.rounding = options.rounding;
  s.gate.k_shard_sums = options.k_shard_sums;
  s.gate.n_shard_projections = options.n_shard_projections;
  if (comm != nullptr && comm->size() > 1) {
    s.gate.comm = comm;
    s.gate.rank = comm->rank();
    s.gate.ranks = comm->size();
  }
  s.part = detail::part_for(shape, options, part, s.gate.ranks);
  s.rates = options.rates.value_or(typical_gate_rates(options.device.kind));
  detail::agree(s.gate.comm, "GateLinear", [&] {
    check_gate_arguments(s.gate, weight.size(), part, s.part, options);
    s.operations = detail::make_gate_operations(options.device, shape.output_size);
    s.gate.operations = s.operations.get();
    return detail::gate_choices(shape, part, options);
  });
  s.take_weight(weight, part);
  s.join_stream();
  detail::agree(s.gate.comm, "GateLinear", [&]() -> detail::AgreedFields {
    s.choose_candidates();
    s.take_workspace();
    return {{"block_tokens", std::to_string(s.gate.block_tokens)},
            {"strategies", std::to_string(s.candidates.size())}};
  });
}

GateLinear::~GateLinear() = default;
GateLinear::GateLinear(GateLinear&&) noexcept = default;
GateLinear& GateLinear::operator=(GateLinear&&) noexcept = default;

const GateShape& GateLinear::shape() const {
  return state_->gate.shape;
}

GateStrategy GateLinear::strategy() const {
  const bool is_alone = state_->candidates.size() == 1;
  return state_->options.strategy == GateStrategy::Auto && is_alone ? state_->candidates.front()
                                                                    : state_->options.strategy;
}

WeightPart GateLinear::resident_part() const {
  return state_->gate.ranks == 1 ? WeightPart::Full : state_->part;
}

std::size_t GateLinear::resident_bytes() const {
  return state_->weight->resident_bytes();
}

IndexRange GateLinear::owned() const {
  const GateContext& gate = state_->gate;
  if (gate.ranks > 1 && state_->part == WeightPart::Columns) return gate.columns_of(gate.rank);
  return gate.rows_of(gate.rank);
}

std::int64_t GateLinear::block_tokens() const {
  return state_->gate.block_tokens;
}

std::size_t GateLinear::workspace_bytes(std::int64_t max_tokens, GateStrategy strategy) const {
  expects(max_tokens >= 0, "GateLinear: max_tokens is negative");
  if (strategy != GateStrategy::Auto) {
    return detail::workspace_of(state_->gate, strategy, max_tokens);
  }
  std::size_t bytes = 0;
  for (const GateStrategy candidate : state_->candidates) {
    bytes = std::max(bytes, detail::workspace_of(state_->gate, candidate, max_tokens));
  }
  return bytes;
}

std::size_t GateLinear::peak_workspace_bytes() const {
  return state_->peak_workspace;
}

GatePlan GateLinear::plan(std::int64_t max_tokens, std::int64_t identical_tokens) const {
  return state_->plan(max_tokens, identical_tokens);
}

void GateLinear::prefetch(StreamRef stream) {
  if (state_->is_candidate(GateStrategy::WeightGather)) {
    state_->gate.stream->start(state_->gate.layer, stream);
  }
}

void GateLinear::forward(const GateCall& call, StreamRef stream) {
  State& s = *state_;
  const GateStrategy strategy = s.options.strategy;
  learn_counts(s.gate, strategy, call,
               {.compares = s.options.check_calls,
                .needs_all = s.needs_counts(),
                .splits_identical = s.splits_identical()},
               s.counts);
  GateRun run{.call = &call,
              .rows = {{{IndexRange{0, call.tokens}, IndexRange{}}}},
              .counts = s.counts.distinct,
              .head_width = call.tokens == 0 ? 1 : call.attn_width / s.gate.shape.output_size,
              .stream = stream};
  if (s.candidates.size() == 1) {
    s.run(s.candidates.front(), run);
    return;
  }
  const IndexRange identical = s.splits_identical() ? detail::identical_range(call, strategy)
                                                    : IndexRange{call.tokens, call.tokens};
  const GatePlan plan = s.plan(s.counts.longest, identical.size());
  const GateStrategy distinct = strategy == GateStrategy::Auto ? plan.distinct : strategy;
  if (s.counts.longest > 0) {
    run.rows = {{{IndexRange{0, identical.begin}, IndexRange{identical.end, call.tokens}}}};
    s.run(distinct, run);
  }
  if (identical.size() > 0) {
    run.rows = {{{identical, IndexRange{}}}};
    s.run(GateStrategy::IdenticalRows, run);
  }
}

std::unique_ptr<Communicator> split_gate_group(Communicator& comm, std::optional<int> group_size) {
  const int size = group_size.value_or(comm.size());
  if (size < 1 || comm.size() % size != 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("split_gate_group: group_size is {}, needs to divide the {} ranks",
                            size, comm.size()));
  }
  return comm.split(comm.rank() / size, comm.rank());
}

}  // namespace penstock
