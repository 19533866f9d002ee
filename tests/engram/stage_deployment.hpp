#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <ostream>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/engram/engram_injection.hpp"
#include "penstock/engram/engram_stage.hpp"
#include "penstock/engram/engram_weights.hpp"
#include "support/small_model.hpp"

// One deployment of Engram layers, checked on every rank of a communicator of any engine.
namespace penstock::test {

/// The models of this process, one for each number of columns, made when first asked for.
inline const SmallModel& model_with(int columns) {
  struct Models {
    std::map<int, SmallModel> made;
    std::filesystem::path root =
        std::filesystem::temp_directory_path() / fmt::format("penstock_stage_{}", getpid());
    ~Models() { std::filesystem::remove_all(root); }
  };
  static Models models;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);  // ranks may be threads
  const auto found = models.made.find(columns);
  if (found != models.made.end()) return found->second;
  const std::map<int, std::pair<int, int>> shapes{
      {24, {4, 8}}, {8, {2, 8}}, {7, {2, 7}}, {15, {4, 5}}};
  const auto [max_ngram, heads] = shapes.at(columns);
  return models.made
      .emplace(columns, make_small_model(models.root / std::to_string(columns), max_ngram, heads))
      .first->second;
}

struct Deployment {
  int columns = 24;
  Placement placement = Placement::Host;
  bool shards_over_dp = false;
};

inline void PrintTo(const Deployment& deployment, std::ostream* out) {
  *out << deployment.columns << "_columns_" << to_string(deployment.placement)
       << (deployment.shards_over_dp ? "_dp_sharded" : "");
}

/// What the replicas bring to a step.
struct TokenPattern {
  std::vector<std::int64_t> counts;  ///< Of each replica.
  bool is_dead = false;              ///< All row ids are -1.
};

inline std::vector<TokenPattern> token_patterns(int replicas) {
  std::vector<std::int64_t> ragged;
  std::vector<std::int64_t> one_idle;
  for (int replica = 0; replica < replicas; ++replica) {
    ragged.push_back(1 + replica * 3 % 7);
    one_idle.push_back(replica == replicas - 1 ? 0 : 5);
  }
  const auto all = [&](std::int64_t tokens) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(replicas), tokens);
  };
  return {{all(6)}, {ragged}, {one_idle}, {all(0)}, {all(1)}, {all(4), true}};
}

inline void expect_rows(const SmallModel& model, std::size_t layer,
                        std::span<const std::int32_t> ids, const TokenRange& mine,
                        std::span<const BF16> rows) {
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

/// Injects into random hidden states and compares with the unsharded layer, bit for bit.
inline void expect_injection(EngramStage& stage, int layer_id, const SmallModel& small,
                             EngramInjection& whole, std::uint32_t seed) {
  const auto rows = stage.rows(layer_id);
  std::mt19937 random(seed);
  const auto elements =
      static_cast<std::size_t>(stage.tokens().count * small.hc_mult * small.hidden);
  const auto hidden = random_bf16(elements, 2.0F, random);
  std::vector<BF16> out(elements);
  stage.forward(layer_id, hidden, {}, out);
  std::vector<BF16> expected(elements);
  whole.project(rows);
  whole.inject(hidden, {}, expected);
  ASSERT_EQ(out, expected);
}

/// Runs every token pattern on this rank of a deployment and compares with the definition. Layer 1 is
/// on the first stage and layer 14 on the last one; stages between them have none.
inline void check_deployment(Communicator& world, const Deployment& deployment,
                             const ParallelConfig& parallel, bool is_sequence_parallel) {
  SCOPED_TRACE(to_string(parallel) + (is_sequence_parallel ? " sp" : ""));
  const SmallModel& small = model_with(deployment.columns);
  const ModelDir model = ModelDir::open(small.directory);
  const RankPlace place = place_of(parallel, world.rank());
  std::vector<int> layers;
  if (place.pp == 0) layers.push_back(1);
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
  for (const TokenPattern& pattern : token_patterns(parallel.dp)) {
    auto ids = small.random_ids(pattern.counts[static_cast<std::size_t>(place.dp)],
                                100 * step++ + static_cast<std::uint32_t>(place.dp));
    if (pattern.is_dead) std::ranges::fill(ids, -1);
    stage.start(ids);
    for (const int layer_id : layers) {
      expect_rows(small, layer_id == 1 ? 0 : 1, ids, stage.tokens(), stage.rows(layer_id));
      expect_injection(stage, layer_id, small, wholes.at(layer_id), step);
    }
  }
}

/// Ranks of a deployment, with or without sequence parallelism.
struct Ranks {
  ParallelConfig parallel;
  bool is_sequence_parallel = false;
};

/// Every legal way to use `size` ranks.
inline std::vector<Ranks> all_ranks_of(int size) {
  std::vector<Ranks> all;
  for (int tp = 1; tp <= size; ++tp) {
    for (int dp = 1; tp * dp <= size; ++dp) {
      if (size % (tp * dp) != 0) continue;
      const ParallelConfig parallel{.dp = dp, .pp = size / (tp * dp), .tp = tp};
      all.push_back({parallel, false});
      if (tp > 1 && parallel.pp == 1) all.push_back({parallel, true});
    }
  }
  return all;
}

/// Every number of columns with every placement on the CPU.
inline std::vector<Deployment> all_deployments() {
  std::vector<Deployment> all;
  for (const int columns : {24, 8, 7, 15}) {
    all.push_back({columns, Placement::Host, false});
    all.push_back({columns, Placement::Host, true});
    all.push_back({columns, Placement::HostShared, false});
    all.push_back({columns, Placement::File, false});
    all.push_back({columns, Placement::File, true});
  }
  return all;
}

/// A sample of deployments: every use of `size` ranks meets `num_columns` of the four numbers of
/// columns, and all numbers and all placements have their turn.
inline void check_sample(Communicator& world, int size, std::size_t num_columns) {
  const auto deployments = all_deployments();
  std::size_t next = 0;
  for (const Ranks& ranks : all_ranks_of(size)) {
    for (std::size_t i = 0; i < num_columns; ++i, ++next) {
      const Deployment& deployment = deployments[next % 4 * 5 + next % 5];
      SCOPED_TRACE(testing::PrintToString(deployment));
      check_deployment(world, deployment, ranks.parallel, ranks.is_sequence_parallel);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace penstock::test
