#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// A deployment document, key by key: a member has the name of its key, and the default that holds
// where the document leaves the key out or sets it to null.

/// What the rules need to know of a model. The document's own keys win over those of `model_dir`.
struct DeployedModel {
  std::optional<std::string> architecture;
  std::optional<std::int64_t> num_nextn_predict_layers;  ///< 0: the model has no native draft.
  std::optional<std::vector<int>> engram_layer_ids;      ///< Empty: known to have none.
  std::optional<std::vector<int>> ple_layer_ids;         ///< The same for Qwen4Exp.
  std::optional<int> engram_max_ngram_size;
  std::optional<int> engram_n_heads;
};

/// Parallel sizes, and what the engine does with them.
struct DeployedParallel {
  int tp = 1;
  int pp = 1;
  int dp = 1;
  int pcp = 1;
  int dcp = 1;
  int external_dp = 1;
  int nodes = 1;  ///< Ranks fill node after node in rank order.
  bool expert_parallel = false;
  bool elastic_ep = false;
  bool enable_dbo = false;
  int ubatch_size = 0;  ///< 2 and more: a batch is cut into microbatches.
};

/// Speculative decoding.
struct DeployedSpeculation {
  std::optional<std::string> method;
  std::optional<int> num_speculative_tokens;
  std::optional<int> native_tokens;               ///< Native depth; nothing means 3.
  std::optional<std::string> draft_model_config;  ///< JSON object as text; `{}` counts as present.
};

/// Backends of the mixture of experts.
struct DeployedMoe {
  std::optional<std::string> all2all_backend;  ///< Nothing: the engine chooses.
  std::optional<std::string> gemm_backend;     ///< Nothing: the engine chooses.
};

/// How Engram tables are kept.
struct DeployedEngram {
  bool cpu_offload = true;
  std::optional<bool> dp_shared_memory;  ///< As the document has it; see shares_tables.
  bool enable_dp_sharding = true;
  bool embedding_across_dp = false;
  bool use_thp = false;
  bool row_shards = false;  ///< Tables are cut by row ids where whole columns do not suffice.
};

/// How the gate's weight is sharded.
struct DeployedGate {
  bool pcp_shard = false;             ///< Without the key: PENSTOCK_GATE_PCP_SHARD.
  std::optional<int> pcp_group_size;  ///< Nothing: the whole PCP group.
  bool dp_shard = false;
  int dp_group_size = 8;
  std::optional<int> block_tokens;          ///< Nothing: the whole batch at once.
  std::optional<std::string> quantization;  ///< Of the gate's weight; nothing: bf16.
};

/// A deployment with every default, `model_dir` and environment switch filled in.
struct Deployment {
  std::optional<std::string> model_dir;
  DeployedModel model;
  std::string platform = "cuda";
  DeployedParallel parallel;
  std::optional<DeployedSpeculation> speculative;  ///< Nothing: no speculation.
  std::string kv_cache_dtype = "auto";
  std::string load_format = "auto";
  DeployedMoe moe;
  std::optional<DeployedEngram> engram;  ///< Nothing: the document does not ask for Engram.
  DeployedGate gate;
};

/// Whether the replicas of a node share one host copy of the tables: what the document says, and
/// without a word of it, if that works (offload, dp > 1, no elastic EP, no transparent huge pages).
bool shares_tables(const Deployment& deployment, const DeployedEngram& engram);

/// What PENSTOCK_GATE_PCP_SHARD says; nothing if it is not set.
///
/// Errors: as parse_switch.
std::optional<bool> gate_pcp_shard_switch();

/// Parses a deployment document, then reads `model_dir` and the environment.
///
/// `source` names the document in errors. Each of `overrides` is "key.path=value" and replaces that
/// key before anything is checked; the value is JSON, or a bare word that stands for a string.
/// A relative `model_dir` starts at the working directory.
///
/// Errors: CorruptFile for text that is not JSON or has a key twice; InvalidArgument for an unknown
///         key, a wrong type or a value out of range, naming the key path, the value found and what
///         is needed, and for a bad switch; what load_model_config throws for `model_dir`.
Deployment parse_deployment(std::string_view json, std::string_view source,
                            std::span<const std::string> overrides = {});

/// The same for a file. Errors: as above; NotFound if there is no such file.
Deployment load_deployment(const std::filesystem::path& file,
                           std::span<const std::string> overrides = {});

/// The resolved document as JSON, with every key: what the rules have judged.
std::string to_json(const Deployment& deployment);

}  // namespace penstock
