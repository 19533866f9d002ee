// Two simulated machines, two ranks on each: nodes, groups, shared tables and exchanges must follow what
// the ranks can reach, over sockets and under mpirun. Without the right to make namespaces, and as a
// test of its own, a map of who reaches whom is given instead.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/engram/engram_stage.hpp"
#include "run_model.hpp"

namespace penstock {
namespace {

using nlohmann::json;
using test::TimedResult;

/// What each rank found of its place.
struct Places {
  std::vector<int> nodes;
  std::vector<int> sharers;
};

constexpr int kRanks = 4;

Places expected_places(bool is_shared) {
  return {{0, 0, 1, 1}, std::vector<int>(kRanks, is_shared ? 2 : 1)};
}

/// The same without namespaces: ranks 0, 1 and ranks 2, 3 reach each other, as an injected map says.
Places places_by_injected_map(const test::RunModel& small, Placement placement) {
  const ModelDir model = ModelDir::open(small.model());
  Places places{std::vector<int>(kRanks), std::vector<int>(kRanks)};
  std::mutex mutex;
  run_thread_group(kRanks, [&](Communicator& world) {
    EngramStageOptions options;
    options.placement = placement;
    options.shards_over_dp = placement == Placement::Host;
    options.max_tokens = 4;
    options.reach = [](Communicator& comm) {
      std::vector<bool> can_reach;
      for (int other = 0; other < kRanks; ++other) {
        can_reach.push_back(other / 2 == comm.rank() / 2);
      }
      return can_reach;
    };
    auto stage = EngramStage::open(model, {.dp = kRanks}, world, {1, 14}, options);
    const std::lock_guard lock(mutex);
    const auto rank = static_cast<std::size_t>(world.rank());
    places.nodes[rank] = stage.node();
    places.sharers[rank] = stage.sharers();
  });
  return places;
}

void expect_places(const Places& found, bool is_shared) {
  EXPECT_EQ(found.nodes, expected_places(is_shared).nodes);
  EXPECT_EQ(found.sharers, expected_places(is_shared).sharers);
}

struct Case {
  const char* name;
  const char* mode;  ///< "mesh" or "mpi".
  std::vector<std::string> words;
  bool is_shared;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

class TwoNodes : public testing::TestWithParam<Case> {
 protected:
  TimedResult run() const {
    test::TimedCommand command = model_.command(GetParam().words);
    command.argv.insert(command.argv.end(), {"--verify", "--json"});
    if (std::string(GetParam().mode) == "mpi") {
      command.argv.insert(command.argv.end(), {"--engine", "mpi"});
    }
    command.argv.insert(command.argv.begin(),
                        {PENSTOCK_TWO_NODES, GetParam().mode, namespaces_.path().string()});
    command.environment.insert(
        command.environment.end(),
        {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
    return test::run_timed(command);
  }

  test::RunModel model_;
  test::TempDir namespaces_;
};

TEST_P(TwoNodes, KeepTheirOwnTablesAndExchangeWithinThemselves) {
  const TimedResult result = run();
  constexpr int kNoRight = 77;
  if (result.exit_code == kNoRight) {
    std::printf("%s: with an injected map of who reaches whom instead\n", result.text().c_str());
    expect_places(places_by_injected_map(
                      model_, GetParam().is_shared ? Placement::HostShared : Placement::Host),
                  GetParam().is_shared);
    return;
  }
  ASSERT_EQ(result.exit_code, 0) << result.text();
  ASSERT_EQ(result.out.size(), 1U);
  const json report = json::parse(result.out[0].text);
  Places places;
  for (const json& rank : report["ranks"]) {
    places.nodes.push_back(rank["node"]);
    places.sharers.push_back(rank["sharers"]);
    for (const json& layer : rank["layers"]) {
      EXPECT_TRUE(layer["verify"]["ok"]);
      // Shared: a copy for each node, which both of its ranks read. Private: half the columns each.
      EXPECT_EQ(layer["shared_bytes"] == layer["resident_bytes"], GetParam().is_shared);
    }
  }
  expect_places(places, GetParam().is_shared);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool is_mpi : {false, true}) {
    if (is_mpi && std::string(PENSTOCK_MPIEXEC).empty()) continue;
    const char* mode = is_mpi ? "mpi" : "mesh";
    all.push_back({is_mpi ? "mpi_shared" : "mesh_shared", mode, {"--dp", "4"}, true});
    all.push_back({is_mpi ? "mpi_exchange" : "mesh_exchange",
                   mode,
                   {"--dp", "4", "--placement", "host", "--dp-shard"},
                   false});
  }
  // One tensor-parallel group over two nodes shares nothing: equal shards are on one node twice.
  all.push_back({"mesh_tp_over_nodes", "mesh", {"--tp", "4", "--placement", "host"}, false});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, TwoNodes, testing::ValuesIn(cases()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(TwoNodesByMap, ShareWithinANodeOnly) {
  const test::RunModel model;
  expect_places(places_by_injected_map(model, Placement::HostShared), true);
  expect_places(places_by_injected_map(model, Placement::Host), false);
}

}  // namespace
}  // namespace penstock
