#include "cli/run/engram_run.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/run/agree.hpp"
#include "cli/run/device_array.hpp"
#include "cli/run/layer_input.hpp"
#include "cli/run/layer_output.hpp"
#include "cli/run/made_up_input.hpp"
#include "cli/run/process_memory.hpp"
#include "cli/run/rank_device.hpp"
#include "cli/run/verify_engram.hpp"
#include "cli/run/workload.hpp"
#include "penstock/checkpoint/token_file.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/event.hpp"
#include "penstock/core/matmul.hpp"
#include "penstock/engram/engram_stage.hpp"
#include "penstock/engram/engram_weights.hpp"
#include "penstock/engram/ngram_hasher.hpp"

namespace penstock::cli {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

TokenMap load_token_map(const RunOptions& options, const ModelDir& model) {
  const EngramConfig& engram = *model.config().engram;
  const auto vocab_size =
      model.config().vocab_size > 0 ? std::optional(model.config().vocab_size) : std::nullopt;
  if (options.token_map == "identity") {
    return TokenMap::identity(static_cast<std::int32_t>(engram.compressed_vocab_size));
  }
  std::filesystem::path file = options.token_map;
  if (file.empty()) file = model.path() / "tokenizer.json";
  if (!std::filesystem::exists(file)) {
    throw Error(
        ErrorCode::NotFound,
        fmt::format("{}: no such file; run needs the model's tokenizer, or --token-map FILE "
                    "or --token-map identity",
                    file.string()));
  }
  const bool is_tokenizer = file.extension() == ".json" || file.extension() == ".xz";
  TokenMap map = is_tokenizer ? TokenMap::from_tokenizer(file, vocab_size) : TokenMap::load(file);
  if (map.size() != engram.compressed_vocab_size) {
    throw Error(ErrorCode::CorruptFile,
                fmt::format("{}: compresses to {} ids, config.json needs {}", file.string(),
                            map.size(), engram.compressed_vocab_size));
  }
  return map;
}

/// First layer of each stage after the first.
std::vector<int> stage_cuts(const RunOptions& options, const ModelConfig& config) {
  if (!options.pp_cuts.empty()) return options.pp_cuts;
  std::vector<int> cuts;
  const std::int64_t layers =
      std::max<std::int64_t>(config.num_hidden_layers, config.engram->layer_ids.back() + 1);
  for (int stage = 1; stage < options.parallel.pp; ++stage) {
    cuts.push_back(static_cast<int>(layers * stage / options.parallel.pp));
  }
  return cuts;
}

std::vector<int> layers_of_stage(const RunOptions& options, const ModelConfig& config, int stage) {
  const std::vector<int> cuts = stage_cuts(options, config);
  std::vector<int> layers;
  for (const int layer : config.engram->layer_ids) {
    const bool is_served = options.layers.empty() || std::ranges::count(options.layers, layer) > 0;
    const auto owner = std::ranges::upper_bound(cuts, layer) - cuts.begin();
    if (is_served && owner == stage) layers.push_back(layer);
  }
  return layers;
}

/// Stands in for the decoder layers that an engine computes before it needs the rows.
class StandIn {
 public:
  explicit StandIn(std::int64_t dim) : dim_(dim), weight_(static_cast<std::size_t>(dim * dim)) {
    fill_input(1, 0, weight_);
  }

  void compute(std::span<const BF16> hidden, std::int64_t tokens, int products) {
    out_.resize(static_cast<std::size_t>(tokens * dim_));
    for (int i = 0; i < products; ++i) {
      matmul_bf16({.m = tokens, .n = dim_, .k = dim_},
                  hidden.first(static_cast<std::size_t>(tokens * dim_)), weight_, std::span(out_));
    }
  }

 private:
  std::int64_t dim_;
  std::vector<BF16> weight_;
  std::vector<BF16> out_;
};

/// What a layer needs for --verify and --out.
struct LayerRecord {
  explicit LayerRecord(Device device)
      : device_hidden(device),
        device_mask(device),
        device_out(device) {}

  int layer_id = 0;
  int hash_index = 0;
  std::shared_ptr<const RowSource> source;
  std::optional<EngramWeights> weights;
  EngramFindings findings;
  LayerOutput output;
  std::int64_t tokens = 0;
  DeviceArray<BF16> device_hidden;  ///< One set a layer: a step's layers are all under way at once.
  DeviceArray<std::uint8_t> device_mask;
  DeviceArray<BF16> device_out;
};

/// One rank's run.
class EngramRun {
 public:
  EngramRun(const RunOptions& options, const ModelDir& model, Communicator& world)
      : options_(options),
        model_(model),
        world_(world),
        place_(place_of(options.parallel, world.rank())),
        hasher_(HashLayout(*model.config().engram), load_token_map(options, model), kImageTokenId),
        device_(rank_device(options, world)),
        stream_(Stream::create(device_)),
        input_(options.inputs, "hidden",
               std::int64_t{model.config().hc_mult} * model.config().hidden_size),
        stand_in_(model.config().hidden_size),
        device_ids_(device_) {}

  json run() {
    plan();
    open();
    for (const Step& step : steps_) serve(step);
    write_outputs();
    return report();
  }

 private:
  void plan() {
    const EngramConfig& engram = *model_.config().engram;
    for (const int layer : options_.layers) {
      if (std::ranges::count(engram.layer_ids, layer) > 0) continue;
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("run: --layers names layer {}, the model has Engram at {}", layer,
                              fmt::join(engram.layer_ids, ", ")));
    }
    WorkloadOptions workload;
    workload.requests = options_.requests;
    workload.chunk = options_.chunk;
    workload.decode = options_.decode;
    workload.replicas = options_.parallel.external_dp * options_.parallel.dp;
    workload.lookback_depth = engram.lookback_depth();
    const int replica = place_.external_dp * options_.parallel.dp + place_.dp;
    const auto tensor = options_.tensor.empty() ? std::nullopt : std::optional(options_.tensor);
    const auto requests =
        make_requests(load_token_file(options_.tokens, tensor).requests, workload);
    for (const Request& request : requests) {
      num_tokens_ += static_cast<std::int64_t>(request.ids.size());
    }
    agree(world_, {.values = {{"the token file", describe_requests(requests)}}});
    steps_ = plan_steps(requests, replica, workload);
    for (int other = 0; other < workload.replicas; ++other) {
      for (const Step& step : plan_steps(requests, other, workload)) {
        max_tokens_ = std::max(max_tokens_, step.num_tokens());
      }
    }
    if (options_.verifies) hash_whole(requests, replica, workload.replicas);
  }

  /// Row ids of whole requests, hashed in one piece: what every chunking must give.
  void hash_whole(const std::vector<Request>& requests, int replica, int replicas) {
    expected_ids_.resize(static_cast<std::size_t>(num_tokens_ * id_width()));
    for (auto i = static_cast<std::size_t>(replica); i < requests.size();
         i += static_cast<std::size_t>(replicas)) {
      const Request& request = requests[i];
      const auto length = static_cast<std::int32_t>(request.ids.size());
      std::vector<std::int64_t> positions(request.ids.size());
      for (std::size_t p = 0; p < positions.size(); ++p)
        positions[p] = static_cast<std::int64_t>(p);
      const std::vector<std::int32_t> query_start{0, length};
      const std::vector<std::int32_t> lookback(
          static_cast<std::size_t>(hasher_.layout().config.lookback_depth()), -1);
      hasher_.hash({request.ids, query_start, positions, lookback},
                   std::span(expected_ids_)
                       .subspan(static_cast<std::size_t>(request.first_token * id_width()),
                                static_cast<std::size_t>(length * id_width())));
    }
  }

  void open() {
    const auto memory_before = proportional_set_bytes();
    const auto layers = layers_of_stage(options_, model_.config(), place_.pp);
    EngramStageOptions stage;
    stage.placement = options_.placement;
    stage.backing = options_.backing;
    stage.device = device_;
    stage.shards_over_dp = options_.shards_over_dp;
    stage.is_sequence_parallel = options_.is_sequence_parallel;
    stage.max_tokens = std::max<std::int64_t>(1, max_tokens_);
    stage.may_fall_back = options_.may_fall_back;
    stage.uses_nccl = options_.engine == "nccl";
    stage.rows = [this](int layer_id) { return source(layer_id); };
    const auto begin = Clock::now();
    stage_.emplace(EngramStage::open(model_, options_.parallel, world_, layers, stage));
    open_seconds_ = seconds(Clock::now() - begin);
    world_.barrier();  // shares of shared pages are right only while every rank has mapped them
    memory_growth_ = proportional_set_bytes() - memory_before;
    world_.barrier();
    for (const int layer_id : layers) {
      LayerRecord record(device_);
      record.layer_id = layer_id;
      record.output = empty_output();
      record.hash_index = model_.config().engram->hash_layer_index(layer_id).value();
      if (options_.verifies) {
        record.source = source(layer_id);
        record.weights = load_engram_weights(model_, layer_id);
      }
      records_.push_back(std::move(record));
    }
  }

  std::shared_ptr<const RowSource> source(int layer_id) const {
    if (!options_.random_rows_seed) return open_checkpoint_rows(model_, layer_id);
    const EngramConfig& engram = *model_.config().engram;
    const auto index = static_cast<std::size_t>(engram.hash_layer_index(layer_id).value());
    return make_random_rows(*options_.random_rows_seed, layer_id, engram.num_embeddings[index],
                            engram.head_dim);
  }

  void serve(const Step& step) {
    if (records_.empty()) return;  // a stage without Engram does nothing and needs no ids
    const auto begin = Clock::now();
    const std::vector<std::int32_t> row_ids = hasher_(step.batch());
    hash_time_ += Clock::now() - begin;
    stage_->start(device_ids_.upload(row_ids), stream_.ref());
    int previous_layer = 0;
    for (LayerRecord& record : records_) {
      serve_layer(record, step, row_ids, record.layer_id - previous_layer);
      previous_layer = record.layer_id;
    }
    stream_.synchronize();  // the ids of the next step overwrite these
    tokens_served_ += step.num_tokens();
  }

  void serve_layer(LayerRecord& record, const Step& step, std::span<const std::int32_t> row_ids,
                   int layers_before) {
    const TokenRange mine = stage_->tokens();
    const auto tokens =
        std::span(step.tokens)
            .subspan(static_cast<std::size_t>(mine.first), static_cast<std::size_t>(mine.count));
    input_.read(record.layer_id, tokens, hidden_);
    if (device_.kind == DeviceKind::Cpu) {
      stand_in_.compute(hidden_, mine.count, layers_before * options_.stand_in);
    }
    mask_.clear();
    for (std::int64_t i = 0; i < mine.count; ++i) {
      const auto id = step.token_ids[static_cast<std::size_t>(mine.first + i)];
      mask_.push_back(hasher_.dead_token_id() == id ? 0 : 1);
    }
    const auto out = record.device_out.resize(hidden_.size());
    stage_->forward(record.layer_id, record.device_hidden.upload(hidden_),
                    record.device_mask.upload(mask_), out, stream_.ref());
    record.tokens += mine.count;
    if (!options_.verifies && options_.out.empty()) return;
    download(record, out);
    const std::vector<std::int32_t> ids = ids_of_layer(record.hash_index, mine, row_ids);
    if (options_.verifies) verify(record, tokens, ids);
    if (!options_.out.empty()) keep(record, tokens, ids);
  }

  /// Brings what the layer read and wrote to the host.
  void download(const LayerRecord& record, std::span<const BF16> out) {
    const auto rows = stage_->rows(record.layer_id, stream_.ref());
    rows_.resize(rows.size());
    copy_bytes(std::as_writable_bytes(std::span(rows_)), std::as_bytes(rows), device_,
               stream_.ref());
    out_.resize(out.size());
    copy_bytes(std::as_writable_bytes(std::span(out_)), std::as_bytes(out), device_, stream_.ref());
  }

  std::vector<std::int32_t> ids_of_layer(int hash_index, const TokenRange& mine,
                                         std::span<const std::int32_t> row_ids) const {
    const int columns = hasher_.layout().num_columns();
    std::vector<std::int32_t> ids;
    for (std::int64_t token = mine.first; token < mine.first + mine.count; ++token) {
      const auto from = row_ids.subspan(
          static_cast<std::size_t>(token * id_width() + std::int64_t{hash_index} * columns),
          static_cast<std::size_t>(columns));
      ids.insert(ids.end(), from.begin(), from.end());
    }
    return ids;
  }

  void verify(LayerRecord& record, std::span<const std::int64_t> tokens,
              std::span<const std::int32_t> ids) {
    const std::span<const BF16> rows = rows_;
    check_rows(*record.source, ids, rows, record.findings);
    const auto columns = static_cast<std::size_t>(hasher_.layout().num_columns());
    const auto dim =
        static_cast<std::size_t>(model_.config().hc_mult * model_.config().hidden_size);
    const std::size_t row_width =
        columns * static_cast<std::size_t>(hasher_.layout().config.head_dim);
    const std::int64_t every = std::max<std::int64_t>(1, num_tokens_ / kTokensToRecompute);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto expected = std::span(expected_ids_)
                                .subspan(static_cast<std::size_t>(tokens[i] * id_width()) +
                                             static_cast<std::size_t>(record.hash_index) * columns,
                                         columns);
      ++record.findings.ids_checked;
      if (!std::ranges::equal(expected, ids.subspan(i * columns, columns))) {
        ++record.findings.id_mismatches;
      }
      if (tokens[i] % every != 0) continue;
      check_token(*record.weights,
                  {rows.subspan(i * row_width, row_width), std::span(hidden_).subspan(i * dim, dim),
                   std::span(out_).subspan(i * dim, dim), mask_[i] != 0},
                  record.findings);
    }
  }

  void keep(LayerRecord& record, std::span<const std::int64_t> tokens,
            std::span<const std::int32_t> ids) {
    // Tensor-parallel ranks without sequence parallelism all have the same tokens: one writes them.
    if (!options_.is_sequence_parallel && place_.tp != 0) return;
    record.output.tokens.insert(record.output.tokens.end(), tokens.begin(), tokens.end());
    record.output.parts[0].append(ids);
    record.output.parts[1].append(std::span<const BF16>(rows_));
    record.output.parts[2].append(std::span<const BF16>(out_));
  }

  /// The tensors that --out writes, without tokens yet.
  LayerOutput empty_output() const {
    const EngramConfig& engram = *model_.config().engram;
    LayerOutput output;
    output.parts.push_back({"row_ids", DType::I32, {engram.num_columns()}, {}});
    output.parts.push_back({"rows", DType::BF16, {engram.num_columns(), engram.head_dim}, {}});
    output.parts.push_back(
        {"hidden", DType::BF16, {model_.config().hc_mult, model_.config().hidden_size}, {}});
    return output;
  }

  void write_outputs() {
    if (options_.out.empty()) return;
    for (const int layer_id : model_.config().engram->layer_ids) {
      if (!options_.layers.empty() && std::ranges::count(options_.layers, layer_id) == 0) continue;
      const auto found = std::ranges::find(records_, layer_id, &LayerRecord::layer_id);
      write_layer_output(world_, layer_id, num_tokens_,
                         found == records_.end() ? empty_output() : found->output, options_.out);
    }
  }

  json report() const {
    json layers = json::array();
    for (const LayerRecord& record : records_) layers.push_back(layer_report(record));
    return {{"rank", world_.rank()},
            {"replica", place_.external_dp * options_.parallel.dp + place_.dp},
            {"stage", place_.pp},
            {"tp_rank", place_.tp},
            {"node", stage_->node()},
            {"sharers", stage_->sharers()},
            {"steps", steps_.size()},
            {"tokens", tokens_served_},
            {"hash_seconds", seconds(hash_time_)},
            {"open_seconds", open_seconds_},
            {"memory_growth_bytes", memory_growth_},
            {"layers", layers}};
  }

  json layer_report(const LayerRecord& record) const {
    const Table& table = stage_->table(record.layer_id);
    const TableStatus& status = table.status();
    const EngramStageTimes times = stage_->times(record.layer_id);
    const double read = seconds(times.read);
    // On CUDA the host sees launches only, so that no time is better than a wrong one.
    const auto timed = [&](double value) {
      return device_.kind == DeviceKind::Cpu ? json(value) : json(nullptr);
    };
    json report = {
        {"layer", record.layer_id},
        {"rows", table.spec().num_rows},
        {"placement", to_string(status.placement)},
        {"backing", status.backing},
        {"backing_choice", status.backing_choice},
        {"resident_bytes", status.resident_bytes},
        {"shared_bytes", status.shared_bytes},
        {"staging_bytes", stage_->staging_bytes(record.layer_id)},
        {"shard", status.is_row_sharded ? "rows" : "columns"},
        {"degraded", status.degraded},
        {"load_seconds", status.load_seconds},
        {"tokens", record.tokens},
        {"rejected_ids", table.rejected_ids()},
        {"read_seconds", timed(read)},
        {"wait_seconds", timed(seconds(times.wait))},
        {"exchange_seconds", seconds(times.exchange)},
        {"project_seconds", timed(seconds(times.project))},
        {"gate_seconds", timed(seconds(times.gate))},
        {"hidden_share",
         read > 0 ? timed(std::clamp(1 - seconds(times.wait) / read, 0.0, 1.0)) : json(nullptr)}};
    if (options_.verifies) {
      const EngramFindings& found = record.findings;
      report["verify"] = {{"ok", found.is_clean()},
                          {"ids_checked", found.ids_checked},
                          {"id_mismatches", found.id_mismatches},
                          {"rows_checked", found.rows_checked},
                          {"row_mismatches", found.row_mismatches},
                          {"tokens_checked", found.tokens_checked},
                          {"token_mismatches", found.token_mismatches}};
    }
    return report;
  }

  std::int64_t id_width() const {
    return std::int64_t{hasher_.layout().num_layers()} * hasher_.layout().num_columns();
  }

  static constexpr std::int64_t kTokensToRecompute = 24;  // in double: slow, so a sample

  const RunOptions& options_;
  const ModelDir& model_;
  Communicator& world_;
  RankPlace place_;
  NgramHasher hasher_;
  Device device_;
  Stream stream_;
  LayerInput input_;
  StandIn stand_in_;
  std::vector<Step> steps_;
  std::int64_t num_tokens_ = 0;  ///< Of the whole run.
  std::int64_t max_tokens_ = 0;  ///< Of one replica in one step.
  std::vector<std::int32_t> expected_ids_;
  std::optional<EngramStage> stage_;
  std::vector<LayerRecord> records_;
  std::vector<BF16> hidden_;
  std::vector<BF16> rows_;
  std::vector<BF16> out_;
  std::vector<std::uint8_t> mask_;
  DeviceArray<std::int32_t> device_ids_;
  std::chrono::nanoseconds hash_time_{};
  std::int64_t tokens_served_ = 0;
  std::int64_t memory_growth_ = 0;
  double open_seconds_ = 0;
};

}  // namespace

nlohmann::json run_engram(const RunOptions& options, const ModelDir& model, Communicator& world) {
  return EngramRun(options, model, world).run();
}

}  // namespace penstock::cli
