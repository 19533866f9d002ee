#pragma once

#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// The value of an environment variable; nothing if it is not set.
/// The only place that reads the environment; `docs/operations.md` lists every variable.
std::optional<std::string> environment_variable(const std::string& name);

/// Every entry of the environment, as "NAME=value", to be handed to a child.
std::vector<std::string> environment_entries();

}  // namespace penstock
