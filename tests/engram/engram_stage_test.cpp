#include "penstock/engram/engram_stage.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/callbacks_over.hpp"
#include "engram/stage_deployment.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "support/small_model.hpp"

namespace penstock {
namespace {

using test::Deployment;
using test::model_with;
using test::SmallModel;

class EngramStageDeployments : public testing::TestWithParam<Deployment> {};

TEST_P(EngramStageDeployments, GiveTheRowsOfTheUnshardedTableOnEveryRank) {
  for (int size = 1; size <= 8; ++size) {
    for (const test::Ranks& ranks : test::all_ranks_of(size)) {
      run_thread_group(size, [&](Communicator& world) {
        test::check_deployment(world, GetParam(), ranks.parallel, ranks.is_sequence_parallel);
      });
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EngramStageDeployments, testing::ValuesIn(test::all_deployments()),
                         [](const auto& param) { return testing::PrintToString(param.param); });

class EngramStageOverCallbacks : public testing::TestWithParam<int> {};

TEST_P(EngramStageOverCallbacks, GivesTheRowsOfTheUnshardedTableInASampleOfDeployments) {
  const int size = GetParam();
  run_thread_group(size, [size](Communicator& threads) {
    const auto world = make_callback_communicator(
        threads.rank(), size,
        test::callbacks_over(threads.split(0, threads.rank()), test::Callbacks::FewestPossible));
    test::check_sample(*world, size, 4);
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, EngramStageOverCallbacks, testing::Values(2, 4, 8));

/// Counts the exchanges of a rank, in its groups too.
class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, std::atomic<int>& exchanges)
      : inner_(std::move(inner)),
        exchanges_(exchanges) {}

  int rank() const noexcept override { return inner_->rank(); }
  int size() const noexcept override { return inner_->size(); }
  std::string_view engine() const noexcept override { return inner_->engine(); }
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                  StreamRef stream) override {
    inner_->all_gather(in, out, stream);
  }
  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, std::size_t block_bytes,
                  StreamRef stream) override {
    ++exchanges_;
    inner_->all_to_all(in, out, block_bytes, stream);
  }
  void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                    std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                    StreamRef stream) override {
    ++exchanges_;
    inner_->all_to_all_v(in, in_bytes, out, out_bytes, stream);
  }
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                      StreamRef stream) override {
    inner_->reduce_scatter(in, out, dtype, stream);
  }
  void broadcast(std::span<std::byte> data, int root, StreamRef stream) override {
    inner_->broadcast(data, root, stream);
  }
  void barrier() override { inner_->barrier(); }
  std::vector<std::vector<std::byte>> all_gather_object(std::span<const std::byte> mine) override {
    return inner_->all_gather_object(mine);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = inner_->split(color, key);
    if (!part) return nullptr;
    return std::make_unique<CountingCommunicator>(std::move(part), exchanges_);
  }
  void abort(std::string_view cause) noexcept override { inner_->abort(cause); }

 private:
  std::unique_ptr<Communicator> inner_;
  std::atomic<int>& exchanges_;
};

TEST(EngramStage, ExchangesTheRowsOfAllLayersAtOnceAndAsRecords) {
  const SmallModel& small = model_with(24);
  const ModelDir model = ModelDir::open(small.directory);
  run_thread_group(4, [&](Communicator& threads) {
    std::atomic<int> exchanges = 0;
    CountingCommunicator world(threads.split(0, threads.rank()), exchanges);
    EngramStageOptions options;
    options.placement = Placement::Host;
    options.shards_over_dp = true;
    options.max_tokens = 8;
    auto stage = EngramStage::open(model, {.dp = 4}, world, {1, 14}, options);
    for (int step = 1; step <= 3; ++step) {
      stage.start(small.random_ids(world.rank() + step, 1));
      // The later layer first: the one that needs its rows first brings those of both.
      for (const int layer_id : {14, 1, 14}) static_cast<void>(stage.rows(layer_id));
      EXPECT_EQ(exchanges, step);
    }
  });
}

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

// A later stage that gets no token ids must not go on as if it had no Engram.
TEST(EngramStage, RefusesToInjectOnAStageThatWasGivenNoIds) {
  const ModelDir model = ModelDir::open(model_with(8).directory);
  run_thread_group(2, [&](Communicator& world) {
    auto stage =
        EngramStage::open(model, {.pp = 2}, world, {world.rank() == 0 ? 1 : 14}, {.max_tokens = 4});
    if (world.rank() == 0) return stage.start(model_with(8).random_ids(2, 1));
    try {
      stage.forward(14, {}, {}, {});
      FAIL() << "nothing was injected, and nobody said so";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr("layer 14 are asked for before start()"));
    }
  });
}

/// What every rank of a group of two raises when they open a stage with these.
void expect_disagreement(const std::function<void(int rank, std::vector<int>& layers,
                                                  EngramStageOptions& options)>& change,
                         const std::string& piece) {
  const ModelDir model = ModelDir::open(model_with(8).directory);
  run_thread_group(2, [&](Communicator& world) {
    std::vector<int> layers{1, 14};
    EngramStageOptions options{.placement = Placement::Host, .max_tokens = 4};
    change(world.rank(), layers, options);
    try {
      static_cast<void>(EngramStage::open(model, {.dp = 2}, world, layers, options));
      ADD_FAILURE() << "accepted: " << piece;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr(piece));
    }
    world.barrier();  // the group is still usable
  });
}

TEST(EngramStage, RefusesRanksThatOpenDifferentThings) {
  expect_disagreement([](int rank, auto& layers, auto&) { layers.resize(rank == 0 ? 2U : 1U); },
                      "rank 0 opens layers [1, 14]; rank 1 opens layers [1]; needed: the same");
  expect_disagreement([](int rank, auto&, auto& options) { options.max_tokens += rank; },
                      "4 tokens");
  expect_disagreement([](int rank, auto&, auto& options) { options.shards_over_dp = rank == 1; },
                      "shards over dp yes");
  expect_disagreement(
      [](int rank, auto&, auto& options) {
        if (rank == 1) options.placement = Placement::HostShared;
      },
      "placement host_shared");
}

TEST(EngramStage, RefusesParallelSizesThatDoNotMakeTheWorld) {
  const ModelDir model = ModelDir::open(model_with(8).directory);
  const auto solo = make_solo_communicator();
  EXPECT_THROW(static_cast<void>(EngramStage::open(model, {.dp = 2}, *solo, {1}, {})), Error);
}

}  // namespace
}  // namespace penstock
