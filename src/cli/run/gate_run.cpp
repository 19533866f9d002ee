#include "cli/run/gate_run.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/agree.hpp"
#include "cli/run/device_array.hpp"
#include "cli/run/layer_input.hpp"
#include "cli/run/layer_output.hpp"
#include "cli/run/rank_device.hpp"
#include "cli/run/workload.hpp"
#include "penstock/checkpoint/token_file.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/event.hpp"
#include "penstock/gate/gate_linear.hpp"
#include "penstock/gate/gate_rates.hpp"
#include "penstock/gate/token_layout.hpp"
#include "penstock/plan/deployment.hpp"

namespace penstock::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

/// The rows of one step on one rank: its own share of every prefill chunk, then the decode tokens,
/// which all ranks have.
struct GateStep {
  std::vector<std::int64_t> tokens;  ///< Their numbers in the run.
  std::int64_t distinct = 0;         ///< Of these, how many no other rank has.
  std::vector<std::int64_t> counts;  ///< Rows of every rank.
};

GateStep share_step(const Step& step, int rank, int ranks) {
  GateStep mine;
  mine.counts.assign(static_cast<std::size_t>(ranks), 0);
  std::vector<std::int64_t> identical;
  for (std::size_t request = 0; request + 1 < step.query_start.size(); ++request) {
    const std::int64_t first = step.query_start[request];
    const std::int64_t length = step.query_start[request + 1] - first;
    const auto number = [&](std::int64_t i) {
      return step.tokens[static_cast<std::size_t>(first + i)];
    };
    if (length == 1) {
      identical.push_back(number(0));
      continue;
    }
    const PcpLayout layout(length, ranks);
    for (const std::int64_t position : layout.positions_of(rank))
      mine.tokens.push_back(number(position));
    const auto counts = layout.counts();
    for (std::size_t r = 0; r < counts.size(); ++r) mine.counts[r] += counts[r];
  }
  mine.distinct = static_cast<std::int64_t>(mine.tokens.size());
  mine.tokens.insert(mine.tokens.end(), identical.begin(), identical.end());
  for (std::int64_t& count : mine.counts) count += static_cast<std::int64_t>(identical.size());
  return mine;
}

/// One gate of the model and what --verify needs of it.
struct GateRecord {
  GateRecord(int layer, GateLinear sharded, Device device)
      : layer_id(layer),
        gate(std::move(sharded)),
        x(device),
        attn_out(device),
        out(device) {}

  int layer_id = 0;
  GateLinear gate;
  std::unique_ptr<GateLinear> whole;  ///< On the CPU: the reference.
  std::int64_t tokens = 0;
  std::int64_t rows_checked = 0;
  std::int64_t row_mismatches = 0;
  std::chrono::nanoseconds time{};
  LayerOutput output;
  DeviceArray<BF16> x;  ///< One set a layer: a step's layers are all under way at once.
  DeviceArray<BF16> attn_out;
  DeviceArray<BF16> out;
};

std::vector<int> layers_with_gates(const RunOptions& options, const ModelDir& model) {
  for (const int layer : options.layers) {
    if (model.find(gate_tensor_names(layer))) continue;
    throw Error(ErrorCode::NotFound,
                fmt::format("{}: no {} or the like, which --layers asks for", model.path().string(),
                            gate_tensor_names(layer)[0]));
  }
  std::vector<int> layers;
  // One more than the backbone has: the layer of the speculative head.
  for (int layer = 0; layer <= model.config().num_hidden_layers; ++layer) {
    const bool is_served = options.layers.empty() || std::ranges::count(options.layers, layer) > 0;
    if (is_served && model.find(gate_tensor_names(layer))) layers.push_back(layer);
  }
  if (layers.empty()) {
    throw Error(ErrorCode::NotFound, fmt::format("{}: no {} or the like", model.path().string(),
                                                 gate_tensor_names(0)[0]));
  }
  return layers;
}

bool is_close(BF16 found, BF16 expected) {
  constexpr float kTolerance = 1e-2F;
  const float a = to_float(found);
  const float b = to_float(expected);
  return std::abs(a - b) <= kTolerance + kTolerance * std::abs(b);
}

class GateRun {
 public:
  GateRun(const RunOptions& options, const ModelDir& model, Communicator& world)
      : options_(options),
        model_(model),
        world_(world),
        place_(place_of(options.parallel, world.rank())),
        device_(rank_device(options, world)),
        stream_(Stream::create(device_)),
        hidden_size_(model.config().hidden_size),
        attn_width_(std::int64_t{model.config().gate->num_heads} * model.config().gate->v_head_dim),
        x_input_(options.inputs, "x", hidden_size_),
        attn_input_(options.inputs, "attn_out", attn_width_) {
    if (options.parallel.tp != 1 || options.parallel.pp != 1) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("run: gates are spread over --pcp ranks; {} needs tp 1 and pp 1",
                              to_string(options.parallel)));
    }
  }

  json run() {
    plan();
    group_ = world_.split(world_.rank() / options_.parallel.pcp, world_.rank());
    if (options_.engine == "nccl") nccl_ = make_nccl_communicator(*group_, device_);
    open();
    for (const Step& step : steps_) serve(share_step(step, group_->rank(), group_->size()));
    if (!options_.out.empty()) {
      for (const GateRecord& record : records_) {
        write_layer_output(world_, record.layer_id, num_tokens_, record.output, options_.out);
      }
    }
    return report();
  }

 private:
  void plan() {
    WorkloadOptions workload;
    workload.requests = options_.requests;
    workload.chunk = options_.chunk;
    workload.decode = options_.decode;
    workload.replicas = options_.parallel.external_dp * options_.parallel.dp;
    workload.lookback_depth = 1;
    const auto tensor = options_.tensor.empty() ? std::nullopt : std::optional(options_.tensor);
    const auto requests =
        make_requests(load_token_file(options_.tokens, tensor).requests, workload);
    for (const Request& request : requests) {
      num_tokens_ += static_cast<std::int64_t>(request.ids.size());
    }
    agree(world_, {.values = {{"the token file", describe_requests(requests)}}});
    steps_ = plan_steps(requests, place_.external_dp * options_.parallel.dp + place_.dp, workload);
  }

  void open() {
    const GateConfig& config = *model_.config().gate;
    const GateShape shape{hidden_size_, config.output_size(), config.gating};
    GateOptions gate;
    gate.strategy = strategy();
    gate.device = device_;
    Communicator* group = nccl_ ? nccl_.get() : group_.get();
    if (gate.strategy == GateStrategy::Auto && is_worth_measuring(shape)) {
      gate.rates = rates_ = measure_gate_rates(group, device_, stream_.ref());
    }
    gate.weight_stream = std::make_shared<WeightStream>(group, shape, device_);
    for (const int layer : layers_with_gates(options_, model_)) {
      GateRecord& record = records_.emplace_back(
          layer, open_gate_linear(model_.path(), layer, group, gate), device_);
      record.output.parts.push_back({"gated", DType::BF16, {attn_width_}, {}});
      if (!options_.verifies) continue;
      GateOptions whole;
      whole.strategy = GateStrategy::Replicated;
      record.whole =
          std::make_unique<GateLinear>(open_gate_linear(model_.path(), layer, nullptr, whole));
    }
  }

  /// Whether the planner has a choice that depends on this machine. On the CPU the ranks read each
  /// other's rows in place, which nothing beats.
  bool is_worth_measuring(const GateShape& shape) const {
    return device_.kind == DeviceKind::Cuda && group_->size() > 1 &&
           plan_gate_residency(shape, group_->size(), {}) == WeightPart::Rows;
  }

  /// What the command line says, else the environment, else what is best.
  GateStrategy strategy() const {
    if (!options_.strategy.empty()) return parse_gate_strategy(options_.strategy).value();
    const bool is_off = gate_pcp_shard_switch() == false;
    return is_off ? GateStrategy::Replicated : GateStrategy::Auto;
  }

  void serve(const GateStep& step) {
    for (GateRecord& record : records_) {
      x_input_.read(record.layer_id, step.tokens, x_);
      attn_input_.read(record.layer_id, step.tokens, attn_out_);
      GateCall call;
      call.tokens = static_cast<std::int64_t>(step.tokens.size());
      call.attn_width = attn_width_;
      call.x = record.x.upload(x_);
      call.attn_out = record.attn_out.upload(attn_out_);
      call.out = record.out.resize(attn_out_.size());
      call.token_counts = step.counts;
      if (step.distinct < call.tokens) call.identical_rows = IndexRange{step.distinct, call.tokens};
      const auto begin = Clock::now();
      record.gate.forward(call, stream_.ref());
      stream_.synchronize();
      record.time += Clock::now() - begin;
      record.tokens += call.tokens;
      out_.resize(attn_out_.size());
      copy_bytes(std::as_writable_bytes(std::span(out_)), std::as_bytes(call.out), device_,
                 stream_.ref());
      if (record.whole) verify(record, call);
      if (!options_.out.empty()) keep(record, step);
    }
  }

  void verify(GateRecord& record, const GateCall& sharded) {
    std::vector<BF16> expected(attn_out_.size());
    GateCall call;
    call.tokens = sharded.tokens;
    call.attn_width = attn_width_;
    call.x = x_;
    call.attn_out = attn_out_;
    call.out = expected;
    record.whole->forward(call);
    // On the CPU, strategies that do not split the sums have the bits of the unsharded gate.
    const bool is_exact =
        device_.kind == DeviceKind::Cpu && record.gate.resident_part() != WeightPart::Columns;
    for (std::int64_t token = 0; token < call.tokens; ++token) {
      const auto first = static_cast<std::size_t>(token * attn_width_);
      ++record.rows_checked;
      for (std::size_t i = first; i < first + static_cast<std::size_t>(attn_width_); ++i) {
        if (is_exact ? out_[i] == expected[i] : is_close(out_[i], expected[i])) continue;
        ++record.row_mismatches;
        break;
      }
    }
  }

  void keep(GateRecord& record, const GateStep& step) {
    // Tokens that all ranks have are written by the first of them.
    const auto count =
        group_->rank() == 0 ? step.tokens.size() : static_cast<std::size_t>(step.distinct);
    record.output.tokens.insert(record.output.tokens.end(), step.tokens.begin(),
                                step.tokens.begin() + static_cast<std::ptrdiff_t>(count));
    record.output.parts[0].append(
        std::span<const BF16>(out_).first(count * static_cast<std::size_t>(attn_width_)));
  }

  json report() const {
    json layers = json::array();
    for (const GateRecord& record : records_) {
      const GateShape& shape = record.gate.shape();
      json layer = {
          {"layer", record.layer_id},
          {"shape", {shape.output_size, shape.hidden_size}},
          {"gating", to_string(shape.gating)},
          {"strategy", to_string(record.gate.strategy())},
          {"resident_part", to_string(record.gate.resident_part())},
          {"resident_bytes", record.gate.resident_bytes()},
          {"replicated_bytes", shape.output_size * shape.hidden_size * std::int64_t{sizeof(BF16)}},
          {"peak_workspace_bytes", record.gate.peak_workspace_bytes()},
          {"tokens", record.tokens},
          {"seconds", std::chrono::duration<double>(record.time).count()}};
      if (record.whole) {
        layer["verify"] = {{"ok", record.row_mismatches == 0},
                           {"rows_checked", record.rows_checked},
                           {"row_mismatches", record.row_mismatches}};
      }
      layers.push_back(std::move(layer));
    }
    json mine = {{"rank", world_.rank()},
                 {"device", to_string(device_)},
                 {"steps", steps_.size()},
                 {"layers", layers}};
    if (rates_) {
      mine["measured_rates"] = {{"link_bytes_per_second", rates_->link_bytes_per_second},
                                {"flops_per_second", rates_->flops_per_second},
                                {"memory_bytes_per_second", rates_->memory_bytes_per_second},
                                {"collective_seconds", rates_->collective_seconds}};
    }
    return mine;
  }

  const RunOptions& options_;
  const ModelDir& model_;
  Communicator& world_;
  RankPlace place_;
  Device device_;
  Stream stream_;
  std::int64_t hidden_size_;
  std::int64_t attn_width_;
  LayerInput x_input_;
  LayerInput attn_input_;
  std::unique_ptr<Communicator> group_;
  std::unique_ptr<Communicator> nccl_;  ///< The same ranks' GPUs, if tokens are to travel.
  std::optional<GateRates> rates_;      ///< Measured, if the planner has a choice.
  std::vector<Step> steps_;
  std::int64_t num_tokens_ = 0;
  std::vector<GateRecord> records_;
  std::vector<BF16> x_;
  std::vector<BF16> attn_out_;
  std::vector<BF16> out_;
};

}  // namespace

nlohmann::json run_gates(const RunOptions& options, const ModelDir& model, Communicator& world) {
  return GateRun(options, model, world).run();
}

}  // namespace penstock::cli
