#include "penstock/plan/deployment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/core/switch.hpp"
#include "penstock/plan/contract.hpp"
#include "plan/contract_documents.hpp"

namespace penstock {
namespace {

using Json = nlohmann::json;
using test::kDeepseekDocument;
using test::kHyV4Document;
using test::patched;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kSwitch = "PENSTOCK_GATE_PCP_SHARD";

// Sets a variable of the environment for one scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~ScopedVariable() { ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

// A file that lives for one scope.
class ScopedDirectory {
 public:
  ScopedDirectory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "penstock_plan_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = pattern;
  }
  ~ScopedDirectory() { std::filesystem::remove_all(path_); }
  ScopedDirectory(const ScopedDirectory&) = delete;
  ScopedDirectory& operator=(const ScopedDirectory&) = delete;

  std::filesystem::path write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::optional<Error> error_of(std::string_view json, std::vector<std::string> overrides = {}) {
  try {
    parse_deployment(json, "doc.json", overrides);
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

struct Malformed {
  std::string_view json;
  ErrorCode code;
  std::vector<std::string> words;
};

void PrintTo(const Malformed& malformed, std::ostream* out) {
  *out << malformed.json;
}

const Malformed kMalformed[] = {
    {"", ErrorCode::CorruptFile, {"doc.json", "not valid JSON"}},
    {"{\"parallel\": {\"tp\": 1}", ErrorCode::CorruptFile, {"doc.json"}},
    {"{} {}", ErrorCode::CorruptFile, {"doc.json"}},
    {R"({"platform": "cuda", "platform": "cpu"})",
     ErrorCode::CorruptFile,
     {"\"platform\" stands twice"}},
    {R"({"parallel": {"tp": 1, "tp": 1}})", ErrorCode::CorruptFile, {"\"tp\" stands twice"}},
    {R"({"speculative": {"draft_model_config": {"a": {"b": 1, "b": 2}}}})",
     ErrorCode::CorruptFile,
     {"\"b\" stands twice"}},
    {"[]", ErrorCode::InvalidArgument, {"the document", "[]", "an object"}},
    {"null", ErrorCode::InvalidArgument, {"the document", "null", "an object"}},
    {R"({"paralel": {}})", ErrorCode::InvalidArgument, {"paralel", "unknown key", "parallel"}},
    {R"({"parallel": {"tpp": 2}})", ErrorCode::InvalidArgument, {"parallel.tpp", "2", "tp, pp"}},
    {R"({"model": {"hidden": null}})", ErrorCode::InvalidArgument, {"model.hidden", "null"}},
    {R"({"speculative": {"tokens": 3}})", ErrorCode::InvalidArgument, {"speculative.tokens"}},
    {R"({"moe": {"backend": "x"}})", ErrorCode::InvalidArgument, {"moe.backend"}},
    {R"({"engram": {"offload": true}})", ErrorCode::InvalidArgument, {"engram.offload"}},
    {R"({"gate": {"shard": true}})", ErrorCode::InvalidArgument, {"gate.shard"}},
    {R"({"parallel": 3})", ErrorCode::InvalidArgument, {"parallel", "3", "an object"}},
    {R"({"parallel": {"tp": 0}})",
     ErrorCode::InvalidArgument,
     {"parallel.tp", "found 0", "from 1"}},
    {R"({"parallel": {"tp": -1}})", ErrorCode::InvalidArgument, {"parallel.tp", "found -1"}},
    {R"({"parallel": {"tp": 2.0}})", ErrorCode::InvalidArgument, {"parallel.tp", "2.0", "integer"}},
    {R"({"parallel": {"tp": true}})", ErrorCode::InvalidArgument, {"parallel.tp", "true"}},
    {R"({"parallel": {"tp": "2"}})", ErrorCode::InvalidArgument, {"parallel.tp", "\"2\""}},
    {R"({"parallel": {"tp": 18446744073709551615}})",
     ErrorCode::InvalidArgument,
     {"parallel.tp", "18446744073709551615"}},
    {R"({"parallel": {"expert_parallel": 1}})",
     ErrorCode::InvalidArgument,
     {"parallel.expert_parallel", "found 1", "true or false"}},
    {R"({"kv_cache_dtype": 8})", ErrorCode::InvalidArgument, {"kv_cache_dtype", "8", "a string"}},
    {R"({"engram": {"dp_shared_memory": "auto"}})",
     ErrorCode::InvalidArgument,
     {"engram.dp_shared_memory", "auto", "true or false"}},
    {R"({"speculative": {"draft_model_config": "x"}})",
     ErrorCode::InvalidArgument,
     {"speculative.draft_model_config", "object"}},
    {R"({"model": {"engram_layer_ids": [1, "x"]}})",
     ErrorCode::InvalidArgument,
     {"model.engram_layer_ids", "\"x\""}},
    {R"({"gate": {"block_tokens": 0}})",
     ErrorCode::InvalidArgument,
     {"gate.block_tokens", "from 1"}},
    {R"({"gate": {"pcp_group_size": "8"}})", ErrorCode::InvalidArgument, {"gate.pcp_group_size"}},
};

class MalformedDocument : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedDocument, IsRefusedWithPathValueAndNeed) {
  const auto error = error_of(GetParam().json);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), GetParam().code);
  for (const std::string& word : GetParam().words) EXPECT_THAT(error->what(), HasSubstr(word));
}

INSTANTIATE_TEST_SUITE_P(Table, MalformedDocument, testing::ValuesIn(kMalformed));

TEST(Deployment, TakesNullAsAbsentAndFillsDefaults) {
  const Deployment d = parse_deployment(
      R"({"parallel": {"tp": null}, "speculative": null, "engram": null, "load_format": null})",
      "");
  EXPECT_EQ(d.parallel.tp, 1);
  EXPECT_EQ(d.load_format, "auto");
  EXPECT_EQ(d.kv_cache_dtype, "auto");
  EXPECT_EQ(d.gate.dp_group_size, 8);
  EXPECT_FALSE(d.speculative.has_value());
  EXPECT_FALSE(d.engram.has_value());
  EXPECT_FALSE(d.gate.pcp_shard);
}

TEST(Deployment, ResolvedDocumentParsesBackToItself) {
  for (const std::string_view document : {kHyV4Document, kDeepseekDocument}) {
    const std::string once = to_json(parse_deployment(document, ""));
    EXPECT_EQ(to_json(parse_deployment(once, "")), once);
  }
}

TEST(Deployment, SharingLeftToUsIsResolved) {
  const auto shared = [](std::string_view patch) {
    const std::string text =
        patched(kDeepseekDocument, {R"({"engram": {"dp_shared_memory": null}})", patch});
    return Json::parse(to_json(parse_deployment(text, "")))["engram"]["dp_shared_memory"]
        .get<bool>();
  };
  EXPECT_TRUE(shared("{}"));
  EXPECT_FALSE(shared(R"({"parallel": {"dp": 1}})"));
  EXPECT_FALSE(shared(R"({"parallel": {"elastic_ep": true}})"));
  EXPECT_FALSE(shared(R"({"engram": {"cpu_offload": false}})"));
  EXPECT_FALSE(shared(R"({"engram": {"use_thp": true}})"));
}

TEST(Deployment, AModelWithEngramGetsItsOptionsUnasked) {
  const auto resolves = [](std::string_view patch) {
    const std::string text = patched(kDeepseekDocument, {R"({"engram": null})", patch});
    return parse_deployment(text, "").engram.has_value();
  };
  EXPECT_TRUE(resolves("{}"));
  EXPECT_FALSE(resolves(R"({"model": {"engram_layer_ids": []}})"));
  EXPECT_FALSE(resolves(R"({"model": {"architecture": "LlamaForCausalLM"}})"));
  EXPECT_FALSE(resolves(R"({"platform": "cpu"})"));
}

TEST(DeploymentOverride, ReplacesAKeyASectionAndAWord) {
  const std::vector<std::string> overrides{"engram.cpu_offload=false", "kv_cache_dtype=auto",
                                           R"(parallel={"dp": 4})", "speculative=null"};
  const Deployment d = parse_deployment(kDeepseekDocument, "", overrides);
  EXPECT_FALSE(d.engram->cpu_offload);
  EXPECT_TRUE(d.engram->dp_shared_memory.value_or(false));
  EXPECT_EQ(d.kv_cache_dtype, "auto");
  EXPECT_EQ(d.parallel.dp, 4);
  EXPECT_FALSE(d.parallel.expert_parallel);
}

TEST(DeploymentOverride, MakesTheSectionThatIsMissing) {
  const std::vector<std::string> dotted{"engram.cpu_offload=false"};
  EXPECT_FALSE(parse_deployment("{}", "", dotted).engram->cpu_offload);
  const std::vector<std::string> whole{"engram={}"};
  EXPECT_TRUE(parse_deployment("{}", "", whole).engram->cpu_offload);
}

TEST(DeploymentOverride, LaterOnesWin) {
  const std::vector<std::string> overrides{"parallel.tp=2", "parallel.tp=4"};
  EXPECT_EQ(parse_deployment("{}", "", overrides).parallel.tp, 4);
}

TEST(DeploymentOverride, RefusesWhatIsNoAssignment) {
  for (const char* text : {"parallel.tp", "=3", ".tp=3", "parallel..tp=3", "parallel.=3"}) {
    const auto error = error_of("{}", {text});
    ASSERT_TRUE(error.has_value()) << text;
    EXPECT_EQ(error->code(), ErrorCode::InvalidArgument) << text;
    EXPECT_THAT(error->what(), HasSubstr("needs key.path=value"));
  }
  EXPECT_THAT(error_of(R"({"platform": "cuda"})", {"platform.x=1"})->what(),
              HasSubstr("needs an object there"));
  EXPECT_EQ(error_of("{}", {"engram={\"a\""})->code(), ErrorCode::CorruptFile);
  EXPECT_EQ(error_of("{}", {R"(engram={"use_thp": true, "use_thp": false})"})->code(),
            ErrorCode::CorruptFile);
  EXPECT_THAT(error_of("{}", {"parallel.tp=two"})->what(), HasSubstr("parallel.tp: found \"two\""));
  EXPECT_THAT(error_of("{}", {"parallel.nope=2"})->what(), HasSubstr("parallel.nope"));
}

TEST(GateSwitch, SetsWhatTheDocumentDoesNot) {
  const ScopedVariable on(kSwitch, "Yes");
  EXPECT_TRUE(parse_deployment("{}", "").gate.pcp_shard);
  EXPECT_TRUE(parse_deployment(R"({"gate": {"pcp_shard": null}})", "").gate.pcp_shard);
  EXPECT_FALSE(parse_deployment(R"({"gate": {"pcp_shard": false}})", "").gate.pcp_shard);
}

TEST(GateSwitch, MeansNothingForAModelWithoutGate) {
  const ScopedVariable on(kSwitch, "1");
  EXPECT_THAT(check_deployment(kDeepseekDocument, ""), IsEmpty());
}

TEST(GateSwitch, IsRefusedWhenMisspeltWhateverTheDocumentSays) {
  const ScopedVariable misspelt(kSwitch, "ture");
  const auto error = error_of(kHyV4Document);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(error->what(), HasSubstr(kSwitch));
  EXPECT_THAT(error->what(), HasSubstr("\"ture\""));
}

TEST(ParseSwitch, KnowsFourWordsForOnAndOneForOff) {
  for (const char* on : {"1", "true", "TRUE", "True", "yes", "YES", "on", "oN"}) {
    EXPECT_TRUE(parse_switch("S", on)) << on;
  }
  EXPECT_FALSE(parse_switch("S", "0"));
  EXPECT_FALSE(parse_switch("S", std::nullopt));
  for (const char* bad : {"", " ", " 1", "1 ", "2", "00", "false", "off", "no", "y", "t", "01"}) {
    EXPECT_THROW(parse_switch("S", bad), Error) << '"' << bad << '"';
  }
}

TEST(DeploymentFile, NamesTheFileInErrors) {
  const ScopedDirectory directory;
  const auto file = directory.write("bad.json", R"({"parallel": {"tp": 0}})");
  try {
    load_deployment(file);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("bad.json: parallel.tp"));
  }
  EXPECT_THAT(check_deployment(directory.write("good.json", kHyV4Document)), IsEmpty());
}

TEST(DeploymentFile, MustExistAndBeAFile) {
  const ScopedDirectory directory;
  const auto code_of = [](const std::filesystem::path& path) {
    try {
      load_deployment(path);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::Internal;
  };
  EXPECT_EQ(code_of(directory.path() / "none.json"), ErrorCode::NotFound);
  EXPECT_EQ(code_of(directory.path()), ErrorCode::InvalidArgument);
}

constexpr std::string_view kEngramConfig = R"({
  "architectures": ["DeepseekV41ForCausalLM"],
  "text_config": {"hidden_size": 64, "engram_layer_ids": [1], "engram_num_embeddings": [30],
    "engram_max_ngram_size": 2, "engram_n_heads": 5, "engram_head_dim": 32,
    "engram_vocab_size": 3, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 100}})";

TEST(ModelDirectory, FillsWhatTheDocumentLeavesOut) {
  const ScopedDirectory directory;
  directory.write("config.json", kEngramConfig);
  const Json document = {{"model_dir", directory.path().string()}, {"parallel", {{"tp", 4}}}};
  const Deployment d = parse_deployment(document.dump(), "");
  EXPECT_EQ(d.model.architecture, "DeepseekV41ForCausalLM");
  EXPECT_EQ(d.model.engram_layer_ids, std::vector<int>{1});
  EXPECT_TRUE(d.engram.has_value());
  const auto violations = check_deployment(d);
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].rule, "engram-empty-column-shard");
  EXPECT_THAT(violations[0].found, HasSubstr("of 5 columns"));
}

TEST(ModelDirectory, YieldsToTheDocumentsOwnKeys) {
  const ScopedDirectory directory;
  directory.write("config.json", kEngramConfig);
  const Json document = {{"model_dir", directory.path().string()},
                         {"model", {{"architecture", "LlamaForCausalLM"}, {"engram_n_heads", 7}}}};
  const Deployment d = parse_deployment(document.dump(), "");
  EXPECT_EQ(d.model.architecture, "LlamaForCausalLM");
  EXPECT_EQ(d.model.engram_n_heads, 7);
  EXPECT_EQ(d.model.engram_max_ngram_size, 2);
}

TEST(ModelDirectory, WithoutEngramKeysHasNoEngramLayers) {
  const ScopedDirectory directory;
  directory.write("config.json", R"({"architectures": ["DeepseekV41ForCausalLM"]})");
  const Json document = {{"model_dir", directory.path().string()}, {"engram", Json::object()}};
  const auto violations = check_deployment(document.dump(), "");
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].rule, "engram-model-support");
}

TEST(ModelDirectory, WithoutNativeDraftViolatesTheDraftRule) {
  const ScopedDirectory directory;
  directory.write("config.json",
                  R"({"architectures": ["HYV4ForCausalLM"], "num_nextn_predict_layers": 0})");
  auto document = Json::parse(kHyV4Document);
  document.erase("model");
  document["model_dir"] = directory.path().string();
  const auto violations = check_deployment(document.dump(), "");
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(violations[0].rule, "hyv4-pcp-native-draft");
}

TEST(ModelDirectory, ThatIsMissingIsNamed) {
  const auto error = error_of(R"({"model_dir": "/nonexistent/model"})");
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), ErrorCode::NotFound);
  EXPECT_THAT(error->what(), HasSubstr("/nonexistent/model"));
}

}  // namespace
}  // namespace penstock
