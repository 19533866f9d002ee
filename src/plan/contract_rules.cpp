#include "plan/contract_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

#include "penstock/table/column_shards.hpp"

namespace penstock::detail {
namespace {

using Verdict = std::optional<Finding>;

constexpr std::string_view kDeepseekV41 = "DeepseekV41ForCausalLM";
constexpr std::string_view kHyV4 = "HYV4ForCausalLM";
constexpr int kNativeMtpTokens = 3;
constexpr std::string_view kValidatedAll2All = "deepep_high_throughput";
constexpr std::string_view kValidatedGemm = "deep_gemm";

constexpr std::string_view kEngramModels =
    "DeepseekV41ForCausalLM with engram_layer_ids, or Qwen4ExpForCausalLM or "
    "Qwen4ExpForConditionalGeneration with ple_layer_ids, on platform cuda";

// Columns of a V4.1 table where the document does not say: the released model's.
constexpr int kReleasedMaxNgramSize = 4;
constexpr int kReleasedHeads = 8;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

bool has_architecture(const Deployment& d, std::string_view name) {
  return d.model.architecture == name;
}

std::string shown(const std::optional<std::string>& text) {
  return text.value_or("absent");
}

// Engram: who may use it.

// A document that does not list the layers is taken at its architecture's word.
bool is_known_empty(const std::optional<std::vector<int>>& layers) {
  return layers && layers->empty();
}

Verdict engram_model_support(const Deployment& d) {
  if (!d.engram) return {};
  const auto violation = [](std::string found) {
    return Finding{std::move(found), std::string(kEngramModels)};
  };
  if (d.platform != "cuda") return violation(fmt::format("platform = {}", d.platform));
  if (has_architecture(d, kDeepseekV41)) {
    if (!is_known_empty(d.model.engram_layer_ids)) return {};
    return violation(fmt::format("{} with no engram_layer_ids", kDeepseekV41));
  }
  const std::string architecture = shown(d.model.architecture);
  if (is_one_of(architecture, {"Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"})) {
    if (!is_known_empty(d.model.ple_layer_ids)) return {};
    return violation(fmt::format("{} with no ple_layer_ids", architecture));
  }
  return violation(fmt::format("engram options with model.architecture = {}", architecture));
}

// Engram: one copy of the tables for a node.

// Sharing that the document asks for by name. What "auto" turns on is legal by construction.
bool asks_to_share(const Deployment& d) {
  return d.engram && d.engram->dp_shared_memory.value_or(false);
}

Verdict engram_share_needs_offload(const Deployment& d) {
  if (!d.engram || !asks_to_share(d) || d.engram->cpu_offload) return {};
  return Finding{"engram.dp_shared_memory = true with engram.cpu_offload = false",
                 "engram.cpu_offload = true, or no sharing"};
}

Verdict engram_share_needs_dp(const Deployment& d) {
  if (!asks_to_share(d) || d.parallel.dp > 1) return {};
  return Finding{fmt::format("engram.dp_shared_memory = true with parallel.dp = {}", d.parallel.dp),
                 "parallel.dp of 2 or more, or no sharing"};
}

Verdict engram_share_elastic_ep(const Deployment& d) {
  if (!asks_to_share(d) || !d.parallel.elastic_ep) return {};
  return Finding{"engram.dp_shared_memory = true with parallel.elastic_ep = true",
                 "parallel.elastic_ep = false, or no sharing"};
}

Verdict engram_across_dp_elastic_ep(const Deployment& d) {
  if (!d.engram || !d.engram->embedding_across_dp) return {};
  if (d.parallel.dp <= 1 || !d.parallel.elastic_ep) return {};
  return Finding{fmt::format("engram.embedding_across_dp = true with parallel.dp = {} and "
                             "parallel.elastic_ep = true",
                             d.parallel.dp),
                 "parallel.elastic_ep = false, or engram.embedding_across_dp = false"};
}

Verdict engram_share_load_format(const Deployment& d) {
  if (!asks_to_share(d) || is_one_of(d.load_format, {"auto", "safetensors", "pt"})) return {};
  return Finding{fmt::format("engram.dp_shared_memory = true with load_format = {}", d.load_format),
                 "load_format auto, safetensors or pt, or no sharing"};
}

// Engram: the rest.

Verdict engram_no_microbatching(const Deployment& d) {
  // Holds without an engram section as well: such a model brings its Engram layers along.
  const bool has_engram =
      has_architecture(d, kDeepseekV41) || (!d.model.architecture && d.engram.has_value());
  if (!has_engram || is_known_empty(d.model.engram_layer_ids)) return {};
  std::vector<std::string> found;
  if (d.parallel.enable_dbo) found.emplace_back("parallel.enable_dbo = true");
  if (d.parallel.ubatch_size >= 2) {
    found.push_back(fmt::format("parallel.ubatch_size = {}", d.parallel.ubatch_size));
  }
  if (found.empty()) return {};
  return Finding{fmt::format("{}", fmt::join(found, ", ")),
                 "parallel.enable_dbo = false and parallel.ubatch_size 0 or 1"};
}

Verdict engram_thp_private_only(const Deployment& d) {
  if (!d.engram || !d.engram->use_thp) return {};
  if (d.engram->cpu_offload && !asks_to_share(d)) return {};
  return Finding{fmt::format("engram.use_thp = true with engram.cpu_offload = {} and "
                             "engram.dp_shared_memory = {}",
                             d.engram->cpu_offload, asks_to_share(d)),
                 "engram.cpu_offload = true and engram.dp_shared_memory = false"};
}

// Replicas of one node that split the columns among themselves: the size of edp_groups for nodes
// that are filled one after the other.
std::int64_t replicas_that_split_columns(const Deployment& d, const DeployedEngram& engram) {
  if (!engram.enable_dp_sharding || d.parallel.elastic_ep || shares_tables(d, engram)) return 1;
  const std::int64_t replicas = std::int64_t{d.parallel.external_dp} * d.parallel.dp;
  if (replicas % d.parallel.nodes != 0) return 1;
  return std::gcd(std::int64_t{d.parallel.dp}, replicas / d.parallel.nodes);
}

Verdict engram_empty_column_shard(const Deployment& d) {
  if (!d.engram || d.engram->row_shards || !has_architecture(d, kDeepseekV41)) return {};
  const int orders = d.model.engram_max_ngram_size.value_or(kReleasedMaxNgramSize) - 1;
  const int columns = orders * d.model.engram_n_heads.value_or(kReleasedHeads);
  const std::int64_t replicas = replicas_that_split_columns(d, *d.engram);
  const std::int64_t shards = d.parallel.tp * replicas;
  if (shards <= columns && has_column_shards(columns, static_cast<int>(shards))) return {};
  return Finding{fmt::format("{} shards (tp {} x {} replicas) of {} columns", shards, d.parallel.tp,
                             replicas, columns),
                 fmt::format("a number of shards among {}, or engram.row_shards = true",
                             fmt::join(legal_column_shards(columns), ", "))};
}

// HY V4 under prefill context parallelism.

bool is_hyv4_pcp(const Deployment& d) {
  return has_architecture(d, kHyV4) && d.parallel.pcp > 1;
}

Verdict hyv4_pcp_topology(const Deployment& d) {
  if (!is_hyv4_pcp(d)) return {};
  std::vector<std::string> found;
  if (d.parallel.pp > 2) found.push_back(fmt::format("parallel.pp = {}", d.parallel.pp));
  if (d.parallel.dcp != 1) found.push_back(fmt::format("parallel.dcp = {}", d.parallel.dcp));
  if (d.parallel.dp != 1) found.push_back(fmt::format("parallel.dp = {}", d.parallel.dp));
  if (found.empty()) return {};
  return Finding{fmt::format("{}", fmt::join(found, ", ")),
                 "parallel.pp 1 or 2, parallel.dcp 1, parallel.dp 1"};
}

Verdict hyv4_pcp_expert_parallel(const Deployment& d) {
  if (!is_hyv4_pcp(d) || d.parallel.expert_parallel) return {};
  return Finding{"parallel.expert_parallel = false", "parallel.expert_parallel = true"};
}

Verdict hyv4_pcp_spec_method(const Deployment& d) {
  if (!is_hyv4_pcp(d) || !d.speculative || d.speculative->method == "mtp") return {};
  return Finding{fmt::format("speculative.method = {}", shown(d.speculative->method)),
                 "mtp, or no speculation"};
}

Verdict hyv4_pcp_native_mtp(const Deployment& d) {
  if (!is_hyv4_pcp(d) || !d.speculative) return {};
  const int needed = d.speculative->native_tokens.value_or(kNativeMtpTokens);
  const std::optional<int>& tokens = d.speculative->num_speculative_tokens;
  if (tokens == needed) return {};
  return Finding{
      fmt::format("num_speculative_tokens = {}", tokens ? std::to_string(*tokens) : "absent"),
      fmt::format("{}, the checkpoint's native depth", needed)};
}

Verdict hyv4_pcp_native_draft(const Deployment& d) {
  if (!is_hyv4_pcp(d) || !d.speculative) return {};
  std::vector<std::string> found;
  if (!d.speculative->draft_model_config) {
    found.emplace_back("speculative.draft_model_config = absent");
  }
  if (d.model.num_nextn_predict_layers == 0) {
    found.emplace_back("model.num_nextn_predict_layers = 0");
  }
  if (found.empty()) return {};
  return Finding{fmt::format("{}", fmt::join(found, ", ")),
                 "a speculative.draft_model_config object and a model with its own draft layers"};
}

Verdict hyv4_pcp_kv_dtype(const Deployment& d) {
  if (!is_hyv4_pcp(d)) return {};
  if (is_one_of(d.kv_cache_dtype, {"auto", "bfloat16", "fp8_e4m3", "fp8_ds_mla"})) return {};
  return Finding{fmt::format("kv_cache_dtype = {}", d.kv_cache_dtype),
                 "auto, bfloat16, fp8_e4m3 or fp8_ds_mla"};
}

// A backend that the document leaves to the engine is not held against it.
Verdict hyv4_pcp_all2all(const Deployment& d) {
  const std::optional<std::string>& backend = d.moe.all2all_backend;
  if (!is_hyv4_pcp(d) || !backend || *backend == kValidatedAll2All) return {};
  return Finding{fmt::format("moe.all2all_backend = {}", *backend), std::string(kValidatedAll2All)};
}

Verdict hyv4_pcp_gemm_backend(const Deployment& d) {
  const std::optional<std::string>& backend = d.moe.gemm_backend;
  if (!is_hyv4_pcp(d) || !backend || *backend == kValidatedGemm) return {};
  return Finding{fmt::format("moe.gemm_backend = {}", *backend), std::string(kValidatedGemm)};
}

// The sharded gate.

// Other models have no gate to shard: for them the switches, which may come from the environment
// of a whole cluster, mean nothing. A document that names no model is judged as if it had one.
bool may_have_gate(const Deployment& d) {
  return !d.model.architecture || has_architecture(d, kHyV4);
}

bool shards_gate(const Deployment& d) {
  return may_have_gate(d) && (d.gate.pcp_shard || d.gate.dp_shard);
}

Verdict hyv4_gate_tp_one(const Deployment& d) {
  if (!shards_gate(d) || d.parallel.tp == 1) return {};
  return Finding{fmt::format("parallel.tp = {} with a sharded gate", d.parallel.tp),
                 "parallel.tp = 1 (tensor parallelism cuts the gate already), or no gate sharding"};
}

Verdict hyv4_gate_one_kind(const Deployment& d) {
  if (!may_have_gate(d) || !d.gate.pcp_shard || !d.gate.dp_shard) return {};
  return Finding{"gate.pcp_shard = true and gate.dp_shard = true", "one of the two, not both"};
}

// A group that cuts a gate: `size` consecutive ranks of a parallel dimension.
Verdict bad_subgroup(std::string_view key, int size, std::string_view dimension, int ranks) {
  const bool is_listed = size == 2 || size == 4 || size == 8;
  if (is_listed && ranks % size == 0) return {};
  return Finding{fmt::format("gate.{} = {} with parallel.{} = {}", key, size, dimension, ranks),
                 fmt::format("2, 4 or 8, and a divisor of parallel.{}", dimension)};
}

Verdict hyv4_gate_group_size(const Deployment& d) {
  if (!shards_gate(d)) return {};
  if (!d.gate.pcp_shard) {
    return bad_subgroup("dp_group_size", d.gate.dp_group_size, "dp", d.parallel.dp);
  }
  if (d.gate.pcp_group_size) {
    return bad_subgroup("pcp_group_size", *d.gate.pcp_group_size, "pcp", d.parallel.pcp);
  }
  if (d.parallel.pcp > 1) return {};
  return Finding{"gate.pcp_shard = true with parallel.pcp = 1",
                 "parallel.pcp of 2 or more, or gate.pcp_shard = false"};
}

Verdict hyv4_gate_unquantised(const Deployment& d) {
  const std::string quantization = d.gate.quantization.value_or("none");
  if (!shards_gate(d) || quantization == "none") return {};
  return Finding{fmt::format("gate.quantization = {}", quantization),
                 "null or none: a sharded gate keeps its bf16 weight"};
}

constexpr std::array kRules{
    Rule{"engram-model-support", "Engram options need a model that has Engram layers, on CUDA.",
         engram_model_support},
    Rule{"engram-share-needs-offload", "Tables shared by a node lie in host memory.",
         engram_share_needs_offload},
    Rule{"engram-share-needs-dp", "Only data-parallel replicas have a table to share.",
         engram_share_needs_dp},
    Rule{"engram-share-elastic-ep", "Replicas that come and go cannot share a table.",
         engram_share_elastic_ep},
    Rule{"engram-across-dp-elastic-ep", "Replicas that come and go cannot hold parts of a table.",
         engram_across_dp_elastic_ep},
    Rule{"engram-share-load-format", "Shared tables are filled once, from checkpoint files.",
         engram_share_load_format},
    Rule{"engram-no-microbatching", "Engram layers do not work with microbatches.",
         engram_no_microbatching},
    Rule{"engram-thp-private-only", "Transparent huge pages serve private host tables only.",
         engram_thp_private_only},
    Rule{"engram-empty-column-shard", "Every shard of a table holds at least one hash column.",
         engram_empty_column_shard},
    Rule{"hyv4-pcp-topology",
         "HY V4 with prefill context parallelism takes one or two pipeline stages, no dcp, no dp.",
         hyv4_pcp_topology},
    Rule{"hyv4-pcp-expert-parallel",
         "HY V4 with prefill context parallelism needs expert parallelism.",
         hyv4_pcp_expert_parallel},
    Rule{"hyv4-pcp-spec-method",
         "HY V4 with prefill context parallelism speculates with MTP alone.", hyv4_pcp_spec_method},
    Rule{"hyv4-pcp-native-mtp",
         "HY V4 with prefill context parallelism speculates to the native depth of its draft.",
         hyv4_pcp_native_mtp},
    Rule{"hyv4-pcp-native-draft",
         "HY V4 with prefill context parallelism speculates with the model's own draft.",
         hyv4_pcp_native_draft},
    Rule{"hyv4-pcp-kv-dtype", "HY V4 with prefill context parallelism knows four KV cache types.",
         hyv4_pcp_kv_dtype},
    Rule{"hyv4-pcp-all2all",
         "HY V4 with prefill context parallelism is validated with one all-to-all backend.",
         hyv4_pcp_all2all},
    Rule{"hyv4-pcp-gemm-backend",
         "HY V4 with prefill context parallelism is validated with one expert GEMM backend.",
         hyv4_pcp_gemm_backend},
    Rule{"hyv4-gate-tp-one", "A gate is sharded over pcp or dp only without tensor parallelism.",
         hyv4_gate_tp_one},
    Rule{"hyv4-gate-one-kind", "A gate is sharded over pcp or over dp.", hyv4_gate_one_kind},
    Rule{"hyv4-gate-group-size",
         "The ranks that share a gate form equal groups of 2, 4 or 8, or "
         "one group of all pcp ranks.",
         hyv4_gate_group_size},
    Rule{"hyv4-gate-unquantised", "A sharded gate has a bf16 weight.", hyv4_gate_unquantised},
};

}  // namespace

std::span<const Rule> rule_table() {
  return kRules;
}

}  // namespace penstock::detail
