#pragma once

#include <functional>

#include "table/sharing/stage.hpp"

namespace penstock::detail {

/// Called on every rank at the start of every stage; may throw what the stage is to fail with.
using FaultHook = std::function<void(int rank, Stage stage)>;

/// For tests: replaces the hook of the whole process; an empty one removes it. No build option,
/// variable or file reaches it.
void set_fault_hook(FaultHook hook);

/// Calls the hook, if there is one.
void call_fault_hook(int rank, Stage stage);

}  // namespace penstock::detail
