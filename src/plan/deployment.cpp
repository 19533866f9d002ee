#include "penstock/plan/deployment.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "checkpoint/strict_json.hpp"
#include "core/environment.hpp"
#include "penstock/checkpoint/model_config.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/switch.hpp"
#include "plan/document_override.hpp"
#include "plan/document_section.hpp"

namespace penstock {
namespace {

using detail::DocumentSection;
using Json = nlohmann::json;

constexpr const char* kGatePcpShard = "PENSTOCK_GATE_PCP_SHARD";

// Far above any model; with them the number of columns cannot overflow.
constexpr int kMostNgramSize = 64;
constexpr int kMostHeads = 1024;

void read_model(DocumentSection section, DeployedModel& out) {
  section.read("architecture", out.architecture);
  section.read_integer("num_nextn_predict_layers", out.num_nextn_predict_layers, 0);
  section.read("engram_layer_ids", out.engram_layer_ids);
  section.read("ple_layer_ids", out.ple_layer_ids);
  section.read_integer("engram_max_ngram_size", out.engram_max_ngram_size, 2, kMostNgramSize);
  section.read_integer("engram_n_heads", out.engram_n_heads, 1, kMostHeads);
  section.finish();
}

void read_parallel(DocumentSection section, DeployedParallel& out) {
  section.read_integer("tp", out.tp, 1);
  section.read_integer("pp", out.pp, 1);
  section.read_integer("dp", out.dp, 1);
  section.read_integer("pcp", out.pcp, 1);
  section.read_integer("dcp", out.dcp, 1);
  section.read_integer("external_dp", out.external_dp, 1);
  section.read_integer("nodes", out.nodes, 1);
  section.read("expert_parallel", out.expert_parallel);
  section.read("elastic_ep", out.elastic_ep);
  section.read("enable_dbo", out.enable_dbo);
  section.read_integer("ubatch_size", out.ubatch_size, 0);
  section.finish();
}

void read_speculation(DocumentSection section, DeployedSpeculation& out) {
  section.read("method", out.method);
  section.read_integer("num_speculative_tokens", out.num_speculative_tokens, 0);
  section.read_integer("native_tokens", out.native_tokens, 1);
  section.read_opaque_object("draft_model_config", out.draft_model_config);
  section.finish();
}

void read_moe(DocumentSection section, DeployedMoe& out) {
  section.read("all2all_backend", out.all2all_backend);
  section.read("gemm_backend", out.gemm_backend);
  section.finish();
}

void read_engram(DocumentSection section, DeployedEngram& out) {
  section.read("cpu_offload", out.cpu_offload);
  section.read("dp_shared_memory", out.dp_shared_memory);
  section.read("enable_dp_sharding", out.enable_dp_sharding);
  section.read("embedding_across_dp", out.embedding_across_dp);
  section.read("use_thp", out.use_thp);
  section.read("row_shards", out.row_shards);
  section.finish();
}

void read_gate(DocumentSection section, DeployedGate& out) {
  section.read("pcp_shard", out.pcp_shard);
  section.read_integer("pcp_group_size", out.pcp_group_size, 0);
  section.read("dp_shard", out.dp_shard);
  section.read_integer("dp_group_size", out.dp_group_size, 0);
  section.read_integer("block_tokens", out.block_tokens, 1);
  section.read("quantization", out.quantization);
  section.finish();
}

Deployment read_document(const Json& json, std::string_view source) {
  Deployment out;
  // Read whatever the document says: a switch that is misspelt must not wait for the day on which
  // a document leaves the key out.
  out.gate.pcp_shard = gate_pcp_shard_switch().value_or(false);

  DocumentSection document(json, "", source);
  document.read("model_dir", out.model_dir);
  if (auto section = document.section("model")) read_model(*std::move(section), out.model);
  document.read("platform", out.platform);
  if (auto section = document.section("parallel")) read_parallel(*std::move(section), out.parallel);
  if (auto section = document.section("speculative")) {
    read_speculation(*std::move(section), out.speculative.emplace());
  }
  document.read("kv_cache_dtype", out.kv_cache_dtype);
  document.read("load_format", out.load_format);
  if (auto section = document.section("moe")) read_moe(*std::move(section), out.moe);
  if (auto section = document.section("engram")) {
    read_engram(*std::move(section), out.engram.emplace());
  }
  if (auto section = document.section("gate")) read_gate(*std::move(section), out.gate);
  document.finish();
  return out;
}

/// Keeps what the document says; where it says nothing, takes `value`.
template <typename T>
void fill(std::optional<T>& out, const std::optional<T>& value) {
  if (!out) out = value;
}

void fill_from_config(DeployedModel& model, const ModelConfig& config) {
  if (!config.architecture.empty()) fill(model.architecture, std::optional(config.architecture));
  fill(model.num_nextn_predict_layers, config.num_nextn_predict_layers);
  fill(model.engram_layer_ids,
       std::optional(config.engram ? config.engram->layer_ids : std::vector<int>{}));
  if (!config.engram) return;
  fill(model.engram_max_ngram_size, std::optional(config.engram->max_ngram_size));
  fill(model.engram_n_heads, std::optional(config.engram->num_heads));
}

// DeepSeek V4.1 serves its Engram layers whether or not somebody mentions them.
bool brings_engram(const Deployment& d) {
  return d.platform == "cuda" && d.model.architecture == "DeepseekV41ForCausalLM" &&
         !(d.model.engram_layer_ids && d.model.engram_layer_ids->empty());
}

}  // namespace

std::optional<bool> gate_pcp_shard_switch() {
  const auto text = environment_variable(kGatePcpShard);
  if (!text) return std::nullopt;
  return parse_switch(kGatePcpShard, text);
}

bool shares_tables(const Deployment& deployment, const DeployedEngram& engram) {
  if (engram.dp_shared_memory) return *engram.dp_shared_memory;
  return engram.cpu_offload && !engram.use_thp && deployment.parallel.dp > 1 &&
         !deployment.parallel.elastic_ep;
}

Deployment parse_deployment(std::string_view json, std::string_view source,
                            std::span<const std::string> overrides) {
  Json document = detail::parse_strict_json(json, source);
  for (const std::string& assignment : overrides) detail::apply_override(document, assignment);
  Deployment out = read_document(document, source);
  if (out.model_dir) {
    const auto config = std::filesystem::path(*out.model_dir) / "config.json";
    fill_from_config(out.model, load_model_config(config));
  }
  if (!out.engram && brings_engram(out)) out.engram.emplace();
  return out;
}

Deployment load_deployment(const std::filesystem::path& file,
                           std::span<const std::string> overrides) {
  expects(!std::filesystem::is_directory(file),
          fmt::format("{}: found a directory, needs a deployment document", file.string()));
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    throw Error(ErrorCode::NotFound, fmt::format("{}: cannot open the deployment document: {}",
                                                 file.string(), std::strerror(errno)));
  }
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (in.bad()) {
    throw Error(ErrorCode::System, fmt::format("{}: cannot read the deployment document: {}",
                                               file.string(), std::strerror(errno)));
  }
  return parse_deployment(text, file.string(), overrides);
}

}  // namespace penstock
