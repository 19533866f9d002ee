#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/run_penstock.hpp"
#include "penstock/plan/contract.hpp"
#include "plan/contract_documents.hpp"

namespace penstock {
namespace {

using Json = nlohmann::json;
using test::CommandResult;
using test::kDeepseekDocument;
using test::kHyV4Document;
using test::patched;
using test::run_penstock;
using test::ScratchDirectory;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

CommandResult check(const std::string& document, const std::string& options = {},
                    const std::string& environment = {}) {
  const ScratchDirectory scratch;
  return run_penstock("check " + scratch.write("deployment.json", document) + " " + options,
                      environment);
}

TEST(CheckCommand, AcceptsALegalDeployment) {
  const CommandResult text = check(std::string(kHyV4Document));
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.out, StartsWith("ok: "));
  EXPECT_THAT(text.err, IsEmpty());

  const CommandResult json = check(std::string(kHyV4Document), "--json");
  EXPECT_EQ(json.exit_code, 0);
  const Json answer = Json::parse(json.out);
  EXPECT_EQ(answer["ok"], true);
  EXPECT_EQ(answer["violations"], Json::array());
  EXPECT_EQ(answer["resolved"]["parallel"]["pcp"], 8);
}

TEST(CheckCommand, AcceptsTheExamples) {
  const std::string folder = PENSTOCK_TEST_DATA "/../examples/deployments";
  for (const auto& example : std::filesystem::directory_iterator(folder)) {
    const CommandResult result = run_penstock("check " + example.path().string());
    EXPECT_EQ(result.exit_code, 0) << example.path() << '\n' << result.out << result.err;
  }
}

TEST(CheckCommand, ReportsViolationsOnStdoutAndExits5) {
  const std::string document =
      patched(kHyV4Document, {R"({"speculative": {"num_speculative_tokens": 2}})"});
  const CommandResult json = check(document, "--json");
  EXPECT_EQ(json.exit_code, 5);
  const Json answer = Json::parse(json.out);
  EXPECT_EQ(answer["ok"], false);
  ASSERT_EQ(answer["violations"].size(), 1U);
  const Json& violation = answer["violations"][0];
  EXPECT_EQ(violation["rule"], "hyv4-pcp-native-mtp");
  EXPECT_EQ(violation["found"], "num_speculative_tokens = 2");
  EXPECT_EQ(violation["needs"], "3, the checkpoint's native depth");
  EXPECT_FALSE(violation["message"].get<std::string>().empty());

  const CommandResult text = check(document);
  EXPECT_EQ(text.exit_code, 5);
  EXPECT_THAT(text.out, HasSubstr("hyv4-pcp-native-mtp"));
  EXPECT_THAT(text.out, HasSubstr("num_speculative_tokens = 2"));
}

TEST(CheckCommand, RefusesBadDocumentsWithOneLineAndExits3) {
  for (const char* document : {"{", R"({"unknown": 1})", R"({"parallel": {"tp": "x"}})",
                               R"({"platform": "cuda", "platform": "cuda"})"}) {
    const CommandResult result = check(document, "--json");
    EXPECT_EQ(result.exit_code, 3) << document;
    EXPECT_THAT(result.out, IsEmpty()) << document;
    EXPECT_THAT(result.err, StartsWith("penstock: error: ")) << document;
    EXPECT_THAT(result.err, HasSubstr("deployment.json")) << document;
  }
  EXPECT_EQ(run_penstock("check /nonexistent/deployment.json").exit_code, 3);
}

TEST(CheckCommand, NeedsADocument) {
  EXPECT_EQ(run_penstock("check").exit_code, 2);
}

TEST(CheckCommand, SetReplacesKeysBeforeJudging) {
  const CommandResult dotted =
      check(std::string(kDeepseekDocument), "--json --set engram.cpu_offload=false");
  EXPECT_EQ(dotted.exit_code, 5);
  EXPECT_EQ(Json::parse(dotted.out)["violations"][0]["rule"], "engram-share-needs-offload");
  EXPECT_EQ(Json::parse(dotted.out)["resolved"]["engram"]["cpu_offload"], false);

  const CommandResult whole =
      check(std::string(kDeepseekDocument), R"(--json --set engram='{"use_thp": true}')");
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_EQ(Json::parse(whole.out)["resolved"]["engram"]["use_thp"], true);

  const CommandResult two =
      check(std::string(kHyV4Document), "--set parallel.pp=2 --set parallel.pcp=4 --json");
  EXPECT_EQ(two.exit_code, 0);
  EXPECT_EQ(Json::parse(two.out)["resolved"]["parallel"]["pp"], 2);

  EXPECT_EQ(check(std::string(kHyV4Document), "--set parallel.pp").exit_code, 3);
}

TEST(CheckCommand, SetLeavesTheDocumentAfterItAlone) {
  const ScratchDirectory scratch;
  const std::string file = scratch.write("deployment.json", kHyV4Document);
  EXPECT_EQ(run_penstock("check --set parallel.pp=3 " + file).exit_code, 5);
}

TEST(CheckCommand, ListsEveryRule) {
  const CommandResult text = run_penstock("check --rules");
  const CommandResult json = run_penstock("check --rules --json");
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_EQ(json.exit_code, 0);
  std::vector<std::string> listed;
  for (const Json& rule : Json::parse(json.out)) listed.push_back(rule["rule"]);
  std::vector<std::string> known;
  for (const ContractRule& rule : contract_rules()) {
    known.emplace_back(rule.id);
    EXPECT_THAT(text.out, HasSubstr(std::string(rule.id) + " "));
  }
  EXPECT_EQ(listed, known);
}

TEST(CheckCommand, ReadsTheGateSwitch) {
  const std::string document = patched(kHyV4Document, {R"({"gate": null, "parallel": {"tp": 2}})"});
  EXPECT_EQ(check(document).exit_code, 0);
  const CommandResult on = check(document, "--json", "PENSTOCK_GATE_PCP_SHARD=On");
  EXPECT_EQ(on.exit_code, 5);
  EXPECT_EQ(Json::parse(on.out)["violations"][0]["rule"], "hyv4-gate-tp-one");
  EXPECT_EQ(check(document, "", "PENSTOCK_GATE_PCP_SHARD=0").exit_code, 0);
  for (const char* bad : {"PENSTOCK_GATE_PCP_SHARD=", "PENSTOCK_GATE_PCP_SHARD=2"}) {
    const CommandResult result = check(document, "--json", bad);
    EXPECT_EQ(result.exit_code, 3) << bad;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(result.err, HasSubstr("PENSTOCK_GATE_PCP_SHARD"));
  }
}

}  // namespace
}  // namespace penstock
