#pragma once

#include <optional>
#include <string>

namespace penstock {

/// The value of an environment variable; nothing if it is not set.
/// The only place that reads the environment; `docs/operations.md` lists every variable.
std::optional<std::string> environment_variable(const std::string& name);

}  // namespace penstock
