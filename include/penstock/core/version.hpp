#pragma once

#include <string>
#include <string_view>

namespace penstock {

/// "major.minor.patch".
std::string_view version();

/// One line: version and what this build holds, for example "penstock 0.1.0 (cuda: no, …)".
std::string build_description();

}  // namespace penstock
