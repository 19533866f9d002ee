#include "penstock/engram/engram_stage.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/engram_injection.hpp"
#include "penstock/engram/engram_weights.hpp"
#include "support/small_model.hpp"

namespace penstock {
namespace {

using test::SmallModel;

/// The models of this file, one for each number of columns, made when first asked for.
const SmallModel& model_with(int columns) {
  struct Models {
    std::map<int, SmallModel> made;
    std::filesystem::path root =
        std::filesystem::temp_directory_path() / fmt::format("penstock_stage_{}", getpid());
    ~Models() { std::filesystem::remove_all(root); }
  };
  static Models models;
  const auto found = models.made.find(columns);
  if (found != models.made.end()) return found->second;
  const std::map<int, std::pair<int, int>> shapes{
      {24, {4, 8}}, {8, {2, 8}}, {7, {2, 7}}, {15, {4, 5}}};
  const auto [max_ngram, heads] = shapes.at(columns);
  return models.made
      .emplace(columns,
               test::make_small_model(models.root / std::to_string(columns), max_ngram, heads))
      .first->second;
}

struct Deployment {
  int columns = 24;
  Placement placement = Placement::Host;
  bool shards_over_dp = false;
};

void PrintTo(const Deployment& deployment, std::ostream* out) {
  *out << deployment.columns << "_columns_" << to_string(deployment.placement)
       << (deployment.shards_over_dp ? "_dp_sharded" : "");
}

/// Tokens of each replica in a step.
std::vector<std::vector<std::int64_t>> token_patterns(int replicas) {
  std::vector<std::int64_t> ragged;
  std::vector<std::int64_t> one_idle;
  for (int replica = 0; replica < replicas; ++replica) {
    ragged.push_back(1 + replica * 3 % 7);
    one_idle.push_back(replica == replicas - 1 ? 0 : 5);
  }
  const auto count = static_cast<std::size_t>(replicas);
  return {std::vector<std::int64_t>(count, 6), ragged, one_idle,
          std::vector<std::int64_t>(count, 0), std::vector<std::int64_t>(count, 1)};
}

void expect_rows(const SmallModel& model, std::size_t layer, std::span<const std::int32_t> ids,
                 const TokenRange& mine, std::span<const BF16> rows) {
  const int columns = model.columns();
  const std::int64_t token_elements = std::int64_t{columns} * model.head_dim;
  ASSERT_EQ(static_cast<std::int64_t>(rows.size()), mine.count * token_elements);
  for (std::int64_t token = 0; token < mine.count; ++token) {
    for (int column = 0; column < columns; ++column) {
      const auto id = ids[static_cast<std::size_t>(
          ((mine.first + token) * 2 + static_cast<std::int64_t>(layer)) * columns + column)];
      for (int i = 0; i < model.head_dim; ++i) {
        const auto found =
            rows[static_cast<std::size_t>(token * token_elements + column * model.head_dim + i)];
        const BF16 expected = id < 0 ? BF16{} : model.element(layer, id, i);
        ASSERT_EQ(found, expected) << "token " << token << " column " << column;
      }
    }
  }
}

/// Runs every token pattern on every rank of a deployment and compares with the definition.
void check_deployment(const SmallModel& small, const Deployment& deployment,
                      const ParallelConfig& parallel, bool is_sequence_parallel) {
  SCOPED_TRACE(to_string(parallel) + (is_sequence_parallel ? " sp" : ""));
  const ModelDir model = ModelDir::open(small.directory);
  run_thread_group(parallel.world_size(), [&](Communicator& world) {
    const RankPlace place = place_of(parallel, world.rank());
    std::vector<int> layers;
    if (parallel.pp == 1 || place.pp == 0) layers.push_back(1);
    if (place.pp == parallel.pp - 1) layers.push_back(14);
    EngramStageOptions options;
    options.placement = deployment.placement;
    options.shards_over_dp = deployment.shards_over_dp;
    options.is_sequence_parallel = is_sequence_parallel;
    options.max_tokens = 8;
    auto stage = EngramStage::open(model, parallel, world, layers, options);
    std::map<int, EngramInjection> wholes;
    for (const int layer_id : layers) {
      wholes.emplace(layer_id,
                     EngramInjection(load_engram_weights(model, layer_id), Device::cpu(), 8));
    }
    std::uint32_t step = 0;
    for (const auto& pattern : token_patterns(parallel.dp)) {
      const auto ids = small.random_ids(pattern[static_cast<std::size_t>(place.dp)],
                                        100 * step++ + static_cast<std::uint32_t>(place.dp));
      stage.start(ids);
      for (const int layer_id : layers) {
        const std::size_t layer = layer_id == 1 ? 0 : 1;
        const auto rows = stage.rows(layer_id);
        expect_rows(small, layer, ids, stage.tokens(), rows);
        std::mt19937 random(step);
        const auto elements =
            static_cast<std::size_t>(stage.tokens().count * small.hc_mult * small.hidden);
        const auto hidden = test::random_bf16(elements, 2.0F, random);
        std::vector<BF16> out(elements);
        stage.forward(layer_id, hidden, {}, out);
        EngramInjection& whole = wholes.at(layer_id);
        std::vector<BF16> expected(elements);
        whole.project(rows);
        whole.inject(hidden, {}, expected);
        ASSERT_EQ(out, expected);
      }
    }
  });
}

class EngramStageDeployments : public testing::TestWithParam<Deployment> {};

TEST_P(EngramStageDeployments, GiveTheRowsOfTheUnshardedTableOnEveryRank) {
  const SmallModel& small = model_with(GetParam().columns);
  for (int tp = 1; tp <= 8; ++tp) {
    for (int dp = 1; tp * dp <= 8; ++dp) {
      for (int pp = 1; tp * dp * pp <= 8 && pp <= (dp == 2 ? 2 : 1); ++pp) {
        for (const bool is_sequence_parallel : {false, true}) {
          if (is_sequence_parallel && (tp == 1 || pp > 1)) continue;
          check_deployment(small, GetParam(), {.dp = dp, .pp = pp, .tp = tp}, is_sequence_parallel);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

std::vector<Deployment> deployments() {
  std::vector<Deployment> all;
  for (const int columns : {24, 8, 7, 15}) {
    all.push_back({columns, Placement::Host, false});
    all.push_back({columns, Placement::Host, true});
    all.push_back({columns, Placement::HostShared, false});
    all.push_back({columns, Placement::File, false});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, EngramStageDeployments, testing::ValuesIn(deployments()),
                         [](const auto& param) { return testing::PrintToString(param.param); });

TEST(EngramStage, DoesNothingOnAStageWithoutEngram) {
  const ModelDir model = ModelDir::open(model_with(8).directory);
  run_thread_group(2, [&](Communicator& world) {
    const std::vector<int> layers = world.rank() == 0 ? std::vector{1, 14} : std::vector<int>{};
    auto stage = EngramStage::open(model, {.pp = 2}, world, layers, {.max_tokens = 4});
    const auto ids = model_with(8).random_ids(world.rank() == 0 ? 3 : 0, 1);
    stage.start(ids);
    if (world.rank() == 1) {
      EXPECT_THROW(stage.rows(1), Error);
      return;
    }
    EXPECT_EQ(stage.rows(14).size(), 3U * 8 * 32);
  });
}

TEST(EngramStage, RaisesOnEveryRankOfTheGroupWhenAReplicaHasTooManyTokens) {
  const SmallModel& small = model_with(8);
  const ModelDir model = ModelDir::open(small.directory);
  run_thread_group(2, [&](Communicator& world) {
    EngramStageOptions options;
    options.placement = Placement::Host;
    options.shards_over_dp = true;
    options.max_tokens = 4;
    auto stage = EngramStage::open(model, {.dp = 2}, world, {1}, options);
    const auto ids = small.random_ids(world.rank() == 1 ? 5 : 2, 1);
    try {
      stage.start(ids);
      FAIL() << "5 tokens were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    }
  });
}

TEST(EngramStage, RefusesParallelSizesThatDoNotMakeTheWorld) {
  const ModelDir model = ModelDir::open(model_with(8).directory);
  const auto solo = make_solo_communicator();
  EXPECT_THROW(static_cast<void>(EngramStage::open(model, {.dp = 2}, *solo, {1}, {})), Error);
}

}  // namespace
}  // namespace penstock
