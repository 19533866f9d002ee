#include "reader/direct/gather_plan.hpp"

#include <gtest/gtest.h>

namespace penstock::detail {
namespace {

constexpr int kMultiprocessors = 132;

GatherProblem problem(std::int64_t tokens, bool in_host_memory, int requested_blocks = 0) {
  return {.rows = tokens * 24,
          .in_host_memory = in_host_memory,
          .multiprocessors = kMultiprocessors,
          .requested_blocks = requested_blocks};
}

TEST(GatherPlan, GivesEachOfFewRowsAWarpOfItsOwn) {
  for (const bool in_host_memory : {false, true}) {
    for (const int tokens : {1, 8, 64, 170}) {
      const GatherPlan plan = plan_gather(problem(tokens, in_host_memory));
      EXPECT_EQ(plan.rows_per_warp, 1);
      EXPECT_GE(plan.blocks * plan.threads / 32, tokens * 24);
    }
  }
}

TEST(GatherPlan, TakesTwoBigBlocksForManyRowsOfHostMemory) {
  const GatherPlan plan = plan_gather(problem(8192, true));
  EXPECT_EQ(plan.blocks, 2);
  EXPECT_EQ(plan.threads, 1024);
}

TEST(GatherPlan, HasFewerRowsInFlightWhereALargeTableIsReadInOrder) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  GatherProblem in_order = problem(8192, true);
  in_order.is_in_order = true;
  in_order.table_bytes = 24 * kGiB;
  EXPECT_EQ(plan_gather(in_order).rows_per_warp, plan_gather(problem(8192, true)).rows_per_warp);
  in_order.table_bytes = 94 * kGiB;
  EXPECT_LT(plan_gather(in_order).rows_per_warp, plan_gather(problem(8192, true)).rows_per_warp);
  EXPECT_EQ(plan_gather(in_order).blocks, 2);
}

TEST(GatherPlan, FillsEveryMultiprocessorForManyRowsOfGpuMemory) {
  const GatherPlan plan = plan_gather(problem(8192, false));
  EXPECT_EQ(plan.blocks % kMultiprocessors, 0);
  EXPECT_GE(plan.rows_per_warp, 2);
}

TEST(GatherPlan, HasFewerRowsInFlightWhereTheyAreTurnedIntoBf16) {
  GatherProblem packed = problem(8192, false);
  GatherProblem bf16 = packed;
  bf16.writes_bf16 = true;
  EXPECT_LT(plan_gather(bf16).rows_per_warp, plan_gather(packed).rows_per_warp);
}

TEST(GatherPlan, ReadsOtherGpusWithBigBlocks) {
  GatherProblem spread = problem(8192, false);
  spread.is_spread = true;
  EXPECT_EQ(plan_gather(spread).threads, 128);
  EXPECT_EQ(plan_gather(spread).blocks, 16 * kMultiprocessors);
}

TEST(GatherPlan, LaunchesAtLeastOneBlockAndNeverMoreThanThereAreRowsFor) {
  EXPECT_EQ(plan_gather({.rows = 0, .multiprocessors = kMultiprocessors}).blocks, 1);
  EXPECT_EQ(plan_gather({.rows = 1, .multiprocessors = kMultiprocessors}).blocks, 1);
  EXPECT_EQ(plan_gather({.rows = 5, .multiprocessors = kMultiprocessors}).blocks, 3);
}

TEST(GatherPlan, NeverTakesMoreBlocksThanRequested) {
  for (const bool in_host_memory : {false, true}) {
    EXPECT_EQ(plan_gather(problem(8192, in_host_memory, 7)).blocks, 7);
    EXPECT_EQ(plan_gather(problem(64, in_host_memory, 7)).blocks, 7);
    EXPECT_EQ(plan_gather(problem(1, in_host_memory, 700)).blocks, 12);
  }
}

}  // namespace
}  // namespace penstock::detail
