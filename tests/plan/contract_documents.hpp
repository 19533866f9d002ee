#pragma once

#include <nlohmann/json.hpp>

#include <initializer_list>
#include <string>
#include <string_view>

namespace penstock::test {

// HY V4 over eight prefill-context ranks, with native MTP: complete and legal.
inline constexpr std::string_view kHyV4Document = R"({
  "model": {"architecture": "HYV4ForCausalLM", "num_nextn_predict_layers": 3},
  "platform": "cuda",
  "parallel": {"tp": 1, "pp": 1, "dp": 1, "pcp": 8, "dcp": 1, "external_dp": 1,
               "expert_parallel": true, "elastic_ep": false, "enable_dbo": false, "ubatch_size": 0},
  "speculative": {"method": "mtp", "num_speculative_tokens": 3, "draft_model_config": {}},
  "kv_cache_dtype": "fp8_e4m3", "load_format": "safetensors",
  "moe": {"all2all_backend": "deepep_high_throughput", "gemm_backend": "deep_gemm"},
  "gate": {"pcp_shard": true, "pcp_group_size": null, "dp_shard": false, "dp_group_size": 8,
           "block_tokens": null}})";

// DeepSeek V4.1, eight replicas that share one host copy of the tables: complete and legal.
inline constexpr std::string_view kDeepseekDocument = R"({
  "model": {"architecture": "DeepseekV41ForCausalLM", "engram_layer_ids": [1, 14],
            "engram_max_ngram_size": 4, "engram_n_heads": 8},
  "parallel": {"tp": 1, "dp": 8, "expert_parallel": true},
  "load_format": "safetensors",
  "engram": {"cpu_offload": true, "dp_shared_memory": true, "enable_dp_sharding": true,
             "embedding_across_dp": false, "use_thp": false}})";

// `document` with a merge patch applied: keys of the patch replace, null removes.
inline std::string patched(std::string_view document,
                           std::initializer_list<std::string_view> patches) {
  auto json = nlohmann::json::parse(document);
  for (const std::string_view patch : patches) json.merge_patch(nlohmann::json::parse(patch));
  return json.dump();
}

}  // namespace penstock::test
