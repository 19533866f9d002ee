#pragma once

#include <string>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/gate/planner.hpp"

namespace penstock {

/// Measures what a group's machine can do for its gates, for GateOptions::rates: products of a gate's
/// size, reading a weight, weights on their way between the ranks, a small collective. All ranks are
/// measured at once, as they work at once. What a group cannot do keeps its typical rate. Gives the
/// slowest rank's medians: the same figures on every rank, to the bit.
///
/// Collective: over `comm`; null: a group of one.
/// Device:     `device` is this rank's; of one kind on all ranks.
/// Async:      everything runs on `stream`, which the communicator may know already; waits for it.
/// Errors:     on every rank if one cannot be measured; the message names it. From the middle of a
///             measurement the group is dead then.
/// Cost:       about 0.1 s, and for that time 0.5 GB of a GPU's memory, or 60 MB a rank on the CPU.
GateRates measure_gate_rates(Communicator* comm, Device device = {}, StreamRef stream = {});

/// The rates in words, in one line.
std::string to_string(const GateRates& rates);

}  // namespace penstock
