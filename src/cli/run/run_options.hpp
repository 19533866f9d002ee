#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "penstock/core/device.hpp"
#include "penstock/table/host_backing.hpp"
#include "penstock/table/placement.hpp"
#include "penstock/topology/parallel_config.hpp"

namespace penstock::cli {

/// The arguments of `penstock run`, checked as far as that is possible without the model.
struct RunOptions {
  std::filesystem::path model;
  std::filesystem::path tokens;
  std::string tensor;
  int requests = 0;
  std::int64_t chunk = 512;
  std::int64_t decode = 8;
  ParallelConfig parallel;
  std::vector<int> pp_cuts;  ///< First layer of each later stage; empty: even cuts.
  bool is_sequence_parallel = false;
  bool shards_over_dp = false;
  Placement placement = Placement::Auto;
  HostBacking backing = HostBacking::Auto;  ///< Of host_shared.
  std::string strategy;  ///< Empty: what PENSTOCK_GATE_PCP_SHARD says, or else auto.
  std::string engine = "threads";
  bool uses_processes = false;  ///< Each rank a process of its own.
  int echo_exit_code = 0;       ///< Of a rank that only heard of a failure; 0: as for that error.
  std::chrono::milliseconds deadline = std::chrono::seconds(60);  ///< For a rank that is silent.
  DeviceKind device = DeviceKind::Cpu;
  bool verifies = false;
  bool may_fall_back = false;
  std::filesystem::path out;     ///< Empty: nothing is written.
  std::filesystem::path inputs;  ///< Empty: inputs are made up.
  std::string token_map;         ///< File, "identity", or empty: the tokenizer.
  std::optional<std::uint64_t> random_rows_seed;
  std::vector<int> layers;  ///< Serve only these; empty: all.
  int stand_in = 1;         ///< Matrix products per decoder layer before ours.
};

}  // namespace penstock::cli
