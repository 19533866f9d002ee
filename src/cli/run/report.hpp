#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

namespace penstock::cli {

/// How much host memory the ranks of an Engram run took, and what for.
struct NodeMemory {
  std::int64_t growth_bytes = 0;   ///< Summed over ranks, pages of several of them counted once.
  std::int64_t table_bytes = 0;    ///< Tables in it: each copy once.
  std::int64_t staging_bytes = 0;  ///< Of all ranks.
};

/// Shapes: `report` as for describe_engram_run().
NodeMemory add_up_memory(const nlohmann::json& report);

/// The report of an Engram run as a table for people.
///
/// Shapes: `report` has "ranks", a list of what run_engram() returned, in rank order.
std::string describe_engram_run(const nlohmann::json& report);

/// The same for a run of gates: "ranks" is what run_gates() returned.
std::string describe_gate_run(const nlohmann::json& report);

}  // namespace penstock::cli
