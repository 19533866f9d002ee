#include "penstock/plan/contract.hpp"

#include <fmt/format.h>

#include <optional>

#include "plan/contract_rules.hpp"

namespace penstock {

std::vector<ContractRule> contract_rules() {
  std::vector<ContractRule> rules;
  for (const detail::Rule& rule : detail::rule_table()) rules.push_back({rule.id, rule.summary});
  return rules;
}

std::vector<Violation> check_deployment(const Deployment& deployment) {
  std::vector<Violation> violations;
  for (const detail::Rule& rule : detail::rule_table()) {
    const std::optional<detail::Finding> finding = rule.judge(deployment);
    if (!finding) continue;
    violations.push_back({std::string(rule.id), finding->found, finding->needs,
                          fmt::format("{}: found {}; needs {}. {}", rule.id, finding->found,
                                      finding->needs, rule.summary)});
  }
  return violations;
}

std::vector<Violation> check_deployment(std::string_view json, std::string_view source) {
  return check_deployment(parse_deployment(json, source));
}

std::vector<Violation> check_deployment(const std::filesystem::path& file) {
  return check_deployment(load_deployment(file));
}

}  // namespace penstock
