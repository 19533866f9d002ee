#include "penstock/plan/contract.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/table/column_shards.hpp"
#include "penstock/topology/edp.hpp"
#include "plan/contract_documents.hpp"

namespace penstock {
namespace {

using test::kDeepseekDocument;
using test::kHyV4Document;
using test::patched;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

std::vector<std::string> broken_rules(const std::string& document) {
  std::vector<std::string> ids;
  for (const Violation& violation : check_deployment(document, "document")) {
    ids.push_back(violation.rule);
  }
  return ids;
}

// A legal document, one change, and the one rule that the change breaks.
struct Breach {
  std::string_view rule;
  std::string_view document;
  std::string_view patch;
  std::string_view found;
  std::string_view needs;
};

void PrintTo(const Breach& breach, std::ostream* out) {
  *out << breach.rule << breach.patch;
}

constexpr std::string_view kV41 = kDeepseekDocument;
constexpr std::string_view kHy = kHyV4Document;

const Breach kBreaches[] = {
    {"engram-model-support", kHy, R"({"engram": {}})", "HYV4ForCausalLM", "DeepseekV41ForCausalLM"},
    {"engram-model-support", kV41, R"({"model": {"architecture": "LlamaForCausalLM"}})",
     "LlamaForCausalLM", "DeepseekV41ForCausalLM"},
    {"engram-model-support", kV41, R"({"model": {"architecture": "Qwen4ExpMTP"}})", "Qwen4ExpMTP",
     "Qwen4ExpForCausalLM"},
    {"engram-model-support", kV41, R"({"model": {"engram_layer_ids": []}})", "no engram_layer_ids",
     "with engram_layer_ids"},
    {"engram-model-support", kV41,
     R"({"model": {"architecture": "Qwen4ExpForCausalLM", "ple_layer_ids": []}})",
     "no ple_layer_ids", "with ple_layer_ids"},
    {"engram-model-support", kV41, R"({"platform": "cpu"})", "platform = cpu", "cuda"},
    {"engram-model-support", kV41, R"({"model": null})", "absent", "DeepseekV41ForCausalLM"},
    {"engram-share-needs-offload", kV41, R"({"engram": {"cpu_offload": false}})",
     "cpu_offload = false", "cpu_offload = true"},
    {"engram-share-needs-dp", kV41, R"({"parallel": {"dp": 1}})", "dp = 1", "2 or more"},
    {"engram-share-elastic-ep", kV41, R"({"parallel": {"elastic_ep": true}})", "elastic_ep = true",
     "elastic_ep = false"},
    {"engram-across-dp-elastic-ep", kV41,
     R"({"parallel": {"elastic_ep": true},
         "engram": {"embedding_across_dp": true, "dp_shared_memory": false}})",
     "dp = 8", "elastic_ep = false"},
    {"engram-share-load-format", kV41, R"({"load_format": "dummy"})", "dummy", "safetensors"},
    {"engram-share-load-format", kV41, R"({"load_format": "sharded_state"})", "sharded_state",
     "auto"},
    {"engram-no-microbatching", kV41, R"({"parallel": {"enable_dbo": true}})", "enable_dbo = true",
     "enable_dbo = false"},
    {"engram-no-microbatching", kV41, R"({"parallel": {"ubatch_size": 2}})", "ubatch_size = 2",
     "0 or 1"},
    {"engram-no-microbatching", kV41, R"({"engram": null, "parallel": {"ubatch_size": 4}})",
     "ubatch_size = 4", "0 or 1"},
    {"engram-thp-private-only", kV41, R"({"engram": {"use_thp": true}})", "dp_shared_memory = true",
     "dp_shared_memory = false"},
    {"engram-thp-private-only", kV41,
     R"({"engram": {"use_thp": true, "cpu_offload": false, "dp_shared_memory": false}})",
     "cpu_offload = false", "cpu_offload = true"},
    {"engram-empty-column-shard", kV41, R"({"parallel": {"tp": 16}})", "16 shards",
     "1, 2, 3, 4, 5, 6, 8, 12, 24"},
    {"engram-empty-column-shard", kV41, R"({"parallel": {"tp": 7}})", "7 shards", "row_shards"},
    {"engram-empty-column-shard", kV41,
     R"({"parallel": {"tp": 4, "dp": 4}, "engram": {"dp_shared_memory": false}})",
     "16 shards (tp 4 x 4 replicas) of 24 columns", "row_shards"},
    {"engram-empty-column-shard", kV41,
     R"({"parallel": {"tp": 4}, "model": {"engram_max_ngram_size": 2, "engram_n_heads": 5}})",
     "4 shards (tp 4 x 1 replicas) of 5 columns", "1, 2, 3, 5"},
    {"hyv4-pcp-topology", kHy, R"({"parallel": {"pp": 3}})", "parallel.pp = 3", "pp 1 or 2"},
    {"hyv4-pcp-topology", kHy, R"({"parallel": {"dcp": 2}})", "parallel.dcp = 2", "dcp 1"},
    {"hyv4-pcp-topology", kHy, R"({"parallel": {"dp": 2}})", "parallel.dp = 2", "dp 1"},
    {"hyv4-pcp-expert-parallel", kHy, R"({"parallel": {"expert_parallel": false}})",
     "expert_parallel = false", "expert_parallel = true"},
    {"hyv4-pcp-spec-method", kHy, R"({"speculative": {"method": "eagle3"}})", "eagle3", "mtp"},
    {"hyv4-pcp-spec-method", kHy, R"({"speculative": {"method": "ngram"}})", "ngram", "mtp"},
    {"hyv4-pcp-spec-method", kHy, R"({"speculative": {"method": "MTP"}})", "MTP", "mtp"},
    {"hyv4-pcp-spec-method", kHy, R"({"speculative": {"method": null}})", "absent", "mtp"},
    {"hyv4-pcp-native-mtp", kHy, R"({"speculative": {"num_speculative_tokens": 1}})",
     "num_speculative_tokens = 1", "3, the checkpoint's native depth"},
    {"hyv4-pcp-native-mtp", kHy, R"({"speculative": {"num_speculative_tokens": 2}})",
     "num_speculative_tokens = 2", "3, the checkpoint's native depth"},
    {"hyv4-pcp-native-mtp", kHy, R"({"speculative": {"num_speculative_tokens": 4}})",
     "num_speculative_tokens = 4", "3, the checkpoint's native depth"},
    {"hyv4-pcp-native-mtp", kHy, R"({"speculative": {"num_speculative_tokens": null}})", "absent",
     "3, the checkpoint's native depth"},
    {"hyv4-pcp-native-mtp", kHy, R"({"speculative": {"native_tokens": 2}})",
     "num_speculative_tokens = 3", "2, the checkpoint's native depth"},
    {"hyv4-pcp-native-draft", kHy, R"({"speculative": {"draft_model_config": null}})",
     "draft_model_config = absent", "draft_model_config object"},
    {"hyv4-pcp-native-draft", kHy, R"({"model": {"num_nextn_predict_layers": 0}})",
     "num_nextn_predict_layers = 0", "draft layers"},
    {"hyv4-pcp-kv-dtype", kHy, R"({"kv_cache_dtype": "fp8_e5m2"})", "fp8_e5m2", "fp8_ds_mla"},
    {"hyv4-pcp-all2all", kHy, R"({"moe": {"all2all_backend": "pplx"}})", "pplx",
     "deepep_high_throughput"},
    {"hyv4-pcp-gemm-backend", kHy, R"({"moe": {"gemm_backend": "triton"}})", "triton", "deep_gemm"},
    {"hyv4-gate-tp-one", kHy, R"({"parallel": {"tp": 2}})", "tp = 2", "tp = 1"},
    {"hyv4-gate-one-kind", kHy, R"({"gate": {"dp_shard": true}})", "dp_shard = true", "not both"},
    {"hyv4-gate-group-size", kHy, R"({"gate": {"pcp_group_size": 1}})", "pcp_group_size = 1",
     "2, 4 or 8"},
    {"hyv4-gate-group-size", kHy, R"({"gate": {"pcp_group_size": 3}})", "pcp_group_size = 3",
     "2, 4 or 8"},
    {"hyv4-gate-group-size", kHy, R"({"gate": {"pcp_group_size": 16}})", "pcp_group_size = 16",
     "2, 4 or 8"},
    {"hyv4-gate-group-size", kHy, R"({"parallel": {"pcp": 12}, "gate": {"pcp_group_size": 8}})",
     "pcp = 12", "divisor"},
    {"hyv4-gate-group-size", kHy, R"({"parallel": {"pcp": 1}})", "pcp = 1", "2 or more"},
    {"hyv4-gate-group-size", kHy,
     R"({"parallel": {"pcp": 1, "dp": 4}, "gate": {"pcp_shard": false, "dp_shard": true}})",
     "dp_group_size = 8 with parallel.dp = 4", "divisor"},
    {"hyv4-gate-unquantised", kHy, R"({"gate": {"quantization": "fp8"}})", "fp8", "bf16"},
};

class ContractBreach : public testing::TestWithParam<Breach> {};

TEST_P(ContractBreach, BreaksItsOwnRuleAndNoOther) {
  const Breach& breach = GetParam();
  const auto violations = check_deployment(patched(breach.document, {breach.patch}), "document");
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].rule, breach.rule);
  EXPECT_THAT(violations[0].found, HasSubstr(std::string(breach.found)));
  EXPECT_THAT(violations[0].needs, HasSubstr(std::string(breach.needs)));
  EXPECT_THAT(violations[0].message, HasSubstr(violations[0].found));
  EXPECT_THAT(violations[0].message, HasSubstr(violations[0].needs));
}

INSTANTIATE_TEST_SUITE_P(Table, ContractBreach, testing::ValuesIn(kBreaches));

TEST(ContractRules, EachHasABreachAndABreachHasARule) {
  std::set<std::string_view> broken;
  for (const Breach& breach : kBreaches) broken.insert(breach.rule);
  std::set<std::string_view> listed;
  for (const ContractRule& rule : contract_rules()) {
    EXPECT_TRUE(listed.insert(rule.id).second) << rule.id << " stands twice";
    EXPECT_FALSE(rule.summary.empty()) << rule.id;
  }
  EXPECT_EQ(broken, listed);
}

// A legal document and a change that leaves it legal.
struct Legal {
  std::string_view what;
  std::string_view document;
  std::string_view patch;
};

void PrintTo(const Legal& legal, std::ostream* out) {
  *out << legal.what;
}

const Legal kLegal[] = {
    {"one pipeline stage, pcp, native MTP of depth 3", kHy, "{}"},
    {"two pipeline stages", kHy, R"({"parallel": {"pp": 2, "pcp": 4}})"},
    {"no speculation", kHy, R"({"speculative": null})"},
    {"a model whose native depth is 2", kHy,
     R"({"speculative": {"native_tokens": 2, "num_speculative_tokens": 2}})"},
    {"the number of draft layers is no depth", kHy,
     R"({"model": {"num_nextn_predict_layers": 1}})"},
    {"no draft layers and no speculation", kHy,
     R"({"model": {"num_nextn_predict_layers": 0}, "speculative": null})"},
    {"backends left to the engine", kHy, R"({"moe": null, "kv_cache_dtype": null})"},
    {"fp8_ds_mla cache", kHy, R"({"kv_cache_dtype": "fp8_ds_mla"})"},
    {"bfloat16 cache", kHy, R"({"kv_cache_dtype": "bfloat16"})"},
    {"a gate over half of the pcp ranks", kHy, R"({"gate": {"pcp_group_size": 4}})"},
    {"a gate over all of 12 pcp ranks", kHy, R"({"parallel": {"pcp": 12}})"},
    {"tensor parallelism with a whole gate", kHy,
     R"({"parallel": {"tp": 4, "pcp": 2}, "gate": {"pcp_shard": false}})"},
    {"rules of pcp do not bind without it", kHy,
     R"({"parallel": {"pcp": 1, "pp": 5, "dp": 4, "expert_parallel": false},
              "gate": {"pcp_shard": false}, "kv_cache_dtype": "fp8_e5m2",
              "speculative": {"method": "ngram", "num_speculative_tokens": 5}})"},
    {"rules of HY V4 do not bind other models", kHy,
     R"({"model": {"architecture": "LlamaForCausalLM"}, "parallel": {"tp": 2, "dcp": 2},
              "gate": {"dp_shard": true, "quantization": "fp8"},
              "speculative": {"num_speculative_tokens": 2}})"},
    {"a gate over data-parallel ranks", kHy,
     R"({"parallel": {"pcp": 1, "dp": 16}, "gate": {"pcp_shard": false, "dp_shard": true}})"},
    {"a quantised gate that is whole", kHy,
     R"({"gate": {"pcp_shard": false, "quantization": "fp8"}})"},
    {"eight replicas share a node's tables", kV41, "{}"},
    {"sharing left to us with one replica", kV41,
     R"({"parallel": {"dp": 1}, "engram": {"dp_shared_memory": null}})"},
    {"sharing left to us with elastic EP", kV41,
     R"({"parallel": {"elastic_ep": true}, "engram": {"dp_shared_memory": null}})"},
    {"sharing left to us with dummy weights", kV41,
     R"({"load_format": "dummy", "engram": {"dp_shared_memory": null}})"},
    {"huge pages with sharing left to us", kV41,
     R"({"parallel": {"dp": 4}, "engram": {"dp_shared_memory": null, "use_thp": true}})"},
    {"device tables, columns over dp", kV41,
     R"({"engram": {"cpu_offload": false, "dp_shared_memory": false}})"},
    {"shared tables are cut over tp alone", kV41, R"({"parallel": {"tp": 4, "dp": 4}})"},
    {"replicas on four nodes cut over tp alone", kV41,
     R"({"parallel": {"tp": 4, "dp": 4, "nodes": 4}, "engram": {"dp_shared_memory": false}})"},
    {"without dp sharding only tp counts", kV41, R"({"parallel": {"tp": 4, "dp": 4},
               "engram": {"dp_shared_memory": false, "enable_dp_sharding": false}})"},
    {"row shards have no empty column", kV41,
     R"({"parallel": {"tp": 16}, "engram": {"row_shards": true}})"},
    {"five shards of 24 columns", kV41, R"({"parallel": {"tp": 5}})"},
    {"microbatches of a model without Engram", kV41,
     R"({"model": {"architecture": "LlamaForCausalLM"}, "engram": null,
               "parallel": {"enable_dbo": true, "ubatch_size": 2}})"},
    {"a microbatch of one", kV41, R"({"parallel": {"ubatch_size": 1}})"},
    {"Qwen4Exp", kV41,
     R"({"model": {"architecture": "Qwen4ExpForConditionalGeneration", "ple_layer_ids": [3]}})"},
    {"layers that nobody lists", kV41, R"({"model": {"engram_layer_ids": null}})"},
    {"across dp without elastic EP", kV41, R"({"engram": {"embedding_across_dp": true}})"},
    {"across dp of one replica", kV41, R"({"parallel": {"dp": 1, "elastic_ep": true},
               "engram": {"embedding_across_dp": true, "dp_shared_memory": false}})"},
    {"torch checkpoints", kV41, R"({"load_format": "pt"})"},
};

class ContractLegal : public testing::TestWithParam<Legal> {};

TEST_P(ContractLegal, BreaksNothing) {
  EXPECT_THAT(broken_rules(patched(GetParam().document, {GetParam().patch})), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Table, ContractLegal, testing::ValuesIn(kLegal));

TEST(Contract, AnEmptyDocumentBreaksNothing) {
  EXPECT_THAT(broken_rules("{}"), IsEmpty());
}

TEST(Contract, EveryLegalColumnCutOfTheReleasedModelIsAccepted) {
  const std::set<int> legal{1, 2, 3, 4, 5, 6, 8, 12, 24};
  for (int tp = 1; tp <= 64; ++tp) {
    const std::string patch = R"({"parallel": {"tp": )" + std::to_string(tp) + "}}";
    EXPECT_EQ(broken_rules(patched(kV41, {patch})).empty(), legal.contains(tp)) << tp;
  }
}

TEST(Contract, ColumnsAreSplitOverTheEdpGroupOfEachNode) {
  for (const int tp : {1, 2, 4}) {
    for (const int dp : {1, 2, 3, 4, 8}) {
      for (const int nodes : {1, 2, 4}) {
        const int ranks = tp * dp;
        if (ranks % nodes != 0) continue;
        std::vector<int> node_of_rank;
        for (int rank = 0; rank < ranks; ++rank) node_of_rank.push_back(rank / (ranks / nodes));
        ParallelConfig config;
        config.tp = tp;
        config.dp = dp;
        const int shards = tp * edp_groups(node_of_rank, config).size;

        auto document = nlohmann::json::parse(kDeepseekDocument);
        document["model"]["engram_max_ngram_size"] = 2;
        document["model"]["engram_n_heads"] = 8;
        document["engram"]["dp_shared_memory"] = false;
        document["parallel"] = {{"tp", tp}, {"dp", dp}, {"nodes", nodes}};
        EXPECT_EQ(broken_rules(document.dump()).empty(), has_column_shards(8, shards))
            << "tp " << tp << " dp " << dp << " nodes " << nodes;
      }
    }
  }
}

TEST(Contract, ReportsEveryBrokenRuleAtOnce) {
  EXPECT_THAT(
      broken_rules(patched(kHy, {R"({"parallel": {"pp": 4, "tp": 2}, "kv_cache_dtype": "int8",
        "speculative": {"method": "eagle", "num_speculative_tokens": 1, "draft_model_config": null},
        "gate": {"dp_shard": true, "pcp_group_size": 5, "quantization": "fp8"},
        "moe": {"all2all_backend": "naive", "gemm_backend": "cutlass"}})"})),
      UnorderedElementsAre("hyv4-pcp-topology", "hyv4-pcp-spec-method", "hyv4-pcp-native-mtp",
                           "hyv4-pcp-native-draft", "hyv4-pcp-kv-dtype", "hyv4-gate-tp-one",
                           "hyv4-gate-one-kind", "hyv4-gate-group-size", "hyv4-gate-unquantised",
                           "hyv4-pcp-all2all", "hyv4-pcp-gemm-backend"));
}

TEST(Contract, PipelineSizeAndSpeculationAreJudgedApart) {
  EXPECT_THAT(broken_rules(patched(kHy, {R"({"parallel": {"pp": 3},
                                             "speculative": {"num_speculative_tokens": 2}})"})),
              ElementsAre("hyv4-pcp-topology", "hyv4-pcp-native-mtp"));
}

TEST(Contract, TopologyNamesEverySizeThatIsWrong) {
  const auto violations =
      check_deployment(patched(kHy, {R"({"parallel": {"pp": 3, "dcp": 2, "dp": 4}})"}), "document");
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].found, "parallel.pp = 3, parallel.dcp = 2, parallel.dp = 4");
}

}  // namespace
}  // namespace penstock
