#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "penstock/plan/deployment.hpp"

namespace penstock::detail {

/// What a rule found wrong.
struct Finding {
  std::string found;
  std::string needs;
};

/// One row of the contract. `judge` sees the deployment alone, never another row.
struct Rule {
  std::string_view id;
  std::string_view summary;
  std::optional<Finding> (*judge)(const Deployment& deployment);
};

std::span<const Rule> rule_table();

}  // namespace penstock::detail
