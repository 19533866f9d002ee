#pragma once

#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/engram/engram_stage.hpp"
#include "penstock/topology/parallel_config.hpp"

namespace penstock::detail {

/// Goes on only if all ranks open a stage alike: the same sizes and options, and the same layers on
/// all ranks of one pipeline stage. What differs would be a hang in some later exchange.
///
/// Collective: over `world`.
/// Errors:     InvalidArgument on every rank, with the first two ranks that differ.
void agree_on_stage(Communicator& world, const ParallelConfig& parallel,
                    const std::vector<int>& layers, const EngramStageOptions& options);

}  // namespace penstock::detail
