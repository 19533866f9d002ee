#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/exit_code.hpp"
#include "penstock/core/error.hpp"
#include "penstock/plan/contract.hpp"

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CheckOptions {
  std::string document;
  std::vector<std::string> overrides;
  bool is_json = false;
  bool lists_rules = false;
};

void print(const std::string& text) {
  std::fputs((text + '\n').c_str(), stdout);
}

int print_rules(bool is_json) {
  Json list = Json::array();
  for (const ContractRule& rule : contract_rules()) {
    list.push_back({{"rule", rule.id}, {"summary", rule.summary}});
    if (!is_json) print(fmt::format("{:<28} {}", rule.id, rule.summary));
  }
  if (is_json) print(list.dump(2));
  return kExitOk;
}

void print_json(const Deployment& deployment, const std::vector<Violation>& violations) {
  Json list = Json::array();
  for (const Violation& violation : violations) {
    list.push_back({{"rule", violation.rule},
                    {"found", violation.found},
                    {"needs", violation.needs},
                    {"message", violation.message}});
  }
  const Json answer = {{"ok", violations.empty()},
                       {"violations", list},
                       {"resolved", Json::parse(to_json(deployment))}};
  print(answer.dump(2));
}

void print_text(const std::vector<Violation>& violations) {
  for (const Violation& violation : violations) {
    print(fmt::format("{}\n  found  {}\n  needs  {}", violation.rule, violation.found,
                      violation.needs));
  }
  const std::size_t rules = contract_rules().size();
  print(violations.empty() ? fmt::format("ok: {} rules hold", rules)
                           : fmt::format("{} of {} rules violated", violations.size(), rules));
}

int check(const CheckOptions& options) {
  if (options.lists_rules) return print_rules(options.is_json);
  const Deployment deployment = load_deployment(options.document, options.overrides);
  const std::vector<Violation> violations = check_deployment(deployment);
  if (options.is_json) {
    print_json(deployment, violations);
  } else {
    print_text(violations);
  }
  return violations.empty() ? kExitOk : kExitVerificationFailed;
}

}  // namespace

void add_check_command(CLI::App& app, Action& action) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = app.add_subcommand("check", "Judge a deployment before it is started");
  CLI::Option* document =
      command->add_option("deployment", options->document, "The deployment document (JSON)");
  command->add_flag("--rules", options->lists_rules, "List every rule instead");
  command->add_flag("--json", options->is_json, "Answer in JSON, with the resolved configuration");
  command
      ->add_option("--set", options->overrides,
                   "Replace a key first, for example engram.cpu_offload=false; may be repeated")
      ->allow_extra_args(false);
  command->footer(
      "docs/formats/deployment.md describes the document. Exits with 5 if a rule is violated.\n"
      "Example: penstock check examples/deployments/hy_v4_pcp.json --set parallel.tp=2");
  command->callback([options, document, &action] {
    if (document->empty() && !options->lists_rules) throw CLI::RequiredError("deployment");
    action = [options] { return check(*options); };
  });
}

}  // namespace penstock::cli
