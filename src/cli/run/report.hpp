#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace penstock::cli {

/// The report of an Engram run as a table for people.
///
/// Shapes: `report` has "ranks", a list of what run_engram() returned, in rank order.
std::string describe_engram_run(const nlohmann::json& report);

/// The same for a run of gates: "ranks" is what run_gates() returned.
std::string describe_gate_run(const nlohmann::json& report);

}  // namespace penstock::cli
