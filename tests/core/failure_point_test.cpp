#include "core/failure_point.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

TEST(PlannedFailure, IsPointRankAndHow) {
  const auto kill = parse_planned_failure("load.map:3:kill");
  EXPECT_EQ(kill.point, FailurePoint::LoadMap);
  EXPECT_EQ(kill.rank, 3);
  EXPECT_EQ(kill.how, PlannedFailure::How::Kill);
  EXPECT_EQ(kill.passing, 1);
  const auto leave = parse_planned_failure("step.inject:0:leave:12");
  EXPECT_EQ(leave.point, FailurePoint::StepInject);
  EXPECT_EQ(leave.how, PlannedFailure::How::Leave);
  EXPECT_EQ(leave.passing, 12);
}

TEST(PlannedFailure, KnowsTwelvePointsByTheirNames) {
  int points = 0;
  for (const char* name :
       {"start.launched", "start.joined", "start.groups", "load.create", "load.reserve", "load.map",
        "load.rows", "load.seal", "step.ids", "step.reads", "step.rows", "step.inject"}) {
    const auto failure = parse_planned_failure(std::string(name) + ":0:kill");
    EXPECT_EQ(to_string(failure.point), name);
    EXPECT_EQ(static_cast<int>(failure.point), points++);
  }
}

TEST(PlannedFailure, RefusesEverythingElseAndSaysWhatIsNeeded) {
  struct Case {
    const char* text;
    const char* piece;
  };
  const Case cases[] = {
      {"", "point:rank:kill"},
      {"load.map", "point:rank:kill"},
      {"load.map:1:kill:1:1", "point:rank:kill"},
      {"load.mop:1:kill", "step.inject"},
      {":1:kill", "one of the points"},
      {"load.map:one:kill", "a rank"},
      {"load.map:-1:kill", "a rank"},
      {"load.map::kill", "a rank"},
      {"load.map:99999999999:kill", "a rank"},
      {"load.map:1:KILL", "kill or leave"},
      {"load.map:1:", "kill or leave"},
      {"load.map:1:kill:0", "1 or more"},
      {"load.map:1:kill:", "1 or more"},
      {"load.map:1:kill: 2", "1 or more"},
  };
  for (const Case& wrong : cases) {
    try {
      parse_planned_failure(wrong.text);
      ADD_FAILURE() << wrong.text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr("PENSTOCK_FAIL_AT: found"));
      EXPECT_THAT(error.what(), testing::HasSubstr(wrong.piece)) << wrong.text;
    }
  }
}

// No variable is set here: the points of every other test would end it.
TEST(FailurePointWithoutAPlan, DoesNothing) {
  EXPECT_FALSE(planned_failure().has_value());
  set_failure_rank(0, RankKind::Thread);
  failure_point(FailurePoint::StartLaunched);
}

}  // namespace
}  // namespace penstock::detail
