#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {

/// Named values that every rank must have alike, as text.
using AgreedFields = std::vector<std::pair<std::string, std::string>>;

/// Runs `step` and compares the fields that it returns over all ranks.
///
/// Collective: `comm` null stands for a group of one.
/// Errors:     on every rank: the step's own error on the rank where it throws, the same code with
///             the rank's name on the others; InvalidArgument that names the first field that
///             differs, its values and ranks. `where` starts every message.
void agree(Communicator* comm, const std::string& where, const std::function<AgreedFields()>& step);

}  // namespace penstock::detail
