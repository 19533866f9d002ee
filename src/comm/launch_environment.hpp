#pragma once

#include <functional>
#include <optional>
#include <string>

#include "penstock/comm/launch.hpp"

namespace penstock::detail {

using EnvironmentLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// detect_launch on any environment.
std::optional<Launch> detect_launch_in(const EnvironmentLookup& lookup);

}  // namespace penstock::detail
