#include <nlohmann/json.hpp>

#include <optional>
#include <string>

#include "penstock/plan/deployment.hpp"

namespace penstock {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <typename T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson model_json(const DeployedModel& model) {
  return {{"architecture", or_null(model.architecture)},
          {"num_nextn_predict_layers", or_null(model.num_nextn_predict_layers)},
          {"engram_layer_ids", or_null(model.engram_layer_ids)},
          {"ple_layer_ids", or_null(model.ple_layer_ids)},
          {"engram_max_ngram_size", or_null(model.engram_max_ngram_size)},
          {"engram_n_heads", or_null(model.engram_n_heads)}};
}

OrderedJson parallel_json(const DeployedParallel& parallel) {
  return {{"tp", parallel.tp},
          {"pp", parallel.pp},
          {"dp", parallel.dp},
          {"pcp", parallel.pcp},
          {"dcp", parallel.dcp},
          {"external_dp", parallel.external_dp},
          {"nodes", parallel.nodes},
          {"expert_parallel", parallel.expert_parallel},
          {"elastic_ep", parallel.elastic_ep},
          {"enable_dbo", parallel.enable_dbo},
          {"ubatch_size", parallel.ubatch_size}};
}

OrderedJson speculation_json(const std::optional<DeployedSpeculation>& speculative) {
  if (!speculative) return nullptr;
  const auto& draft = speculative->draft_model_config;
  return {{"method", or_null(speculative->method)},
          {"num_speculative_tokens", or_null(speculative->num_speculative_tokens)},
          {"native_tokens", or_null(speculative->native_tokens)},
          {"draft_model_config", draft ? OrderedJson::parse(*draft) : OrderedJson(nullptr)}};
}

OrderedJson engram_json(const Deployment& d) {
  if (!d.engram) return nullptr;
  return {{"cpu_offload", d.engram->cpu_offload},
          {"dp_shared_memory", shares_tables(d, *d.engram)},
          {"enable_dp_sharding", d.engram->enable_dp_sharding},
          {"embedding_across_dp", d.engram->embedding_across_dp},
          {"use_thp", d.engram->use_thp},
          {"row_shards", d.engram->row_shards}};
}

OrderedJson gate_json(const DeployedGate& gate) {
  return {{"pcp_shard", gate.pcp_shard},
          {"pcp_group_size", or_null(gate.pcp_group_size)},
          {"dp_shard", gate.dp_shard},
          {"dp_group_size", gate.dp_group_size},
          {"block_tokens", or_null(gate.block_tokens)},
          {"quantization", or_null(gate.quantization)}};
}

}  // namespace

std::string to_json(const Deployment& d) {
  const OrderedJson document = {{"model_dir", or_null(d.model_dir)},
                                {"model", model_json(d.model)},
                                {"platform", d.platform},
                                {"parallel", parallel_json(d.parallel)},
                                {"speculative", speculation_json(d.speculative)},
                                {"kv_cache_dtype", d.kv_cache_dtype},
                                {"load_format", d.load_format},
                                {"moe",
                                 {{"all2all_backend", or_null(d.moe.all2all_backend)},
                                  {"gemm_backend", or_null(d.moe.gemm_backend)}}},
                                {"engram", engram_json(d)},
                                {"gate", gate_json(d.gate)}};
  return document.dump();
}

}  // namespace penstock
