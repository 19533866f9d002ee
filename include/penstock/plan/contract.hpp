#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/plan/deployment.hpp"

namespace penstock {

/// A rule of the deployment contract that a deployment breaks.
struct Violation {
  std::string rule;     ///< Its stable id, one of contract_rules().
  std::string found;    ///< The values that break it.
  std::string needs;    ///< The values that would satisfy it.
  std::string message;  ///< The three above and the reason, in one line.
};

/// What a rule is called and what it says.
struct ContractRule {
  std::string_view id;       ///< Stable: scripts may match it.
  std::string_view summary;  ///< One line.
};

/// Every rule of the contract, in the order in which violations are reported.
std::vector<ContractRule> contract_rules();

/// Every rule that `deployment` breaks, all at once; empty if it may be started.
///
/// Rules do not depend on each other: what one finds never hides another. A rule about Engram or
/// the gate is silent for a deployment that uses neither.
std::vector<Violation> check_deployment(const Deployment& deployment);

/// The same for the text of a document. Errors: those of parse_deployment.
std::vector<Violation> check_deployment(std::string_view json, std::string_view source);

/// The same for a file. Errors: those of load_deployment.
std::vector<Violation> check_deployment(const std::filesystem::path& file);

}  // namespace penstock
