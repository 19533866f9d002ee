// Ranks kill themselves with SIGKILL at every step of a job. The others must hear of it, whatever
// they are doing, and name the rank that died.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "penstock/comm/launcher.hpp"

namespace penstock {
namespace {

struct JobResult {
  LaunchResult launch;
  std::vector<std::string> heard;  ///< What each rank says of the failure; empty if nothing.
  std::vector<double> latencies_ms;
};

/// Runs the job of rank_program and takes its messages apart.
JobResult run_job(int size, int victim, const std::string& point) {
  JobResult result;
  result.heard.resize(static_cast<std::size_t>(size));
  long long killed_us = 0;
  std::vector<long long> heard_us;
  LaunchOptions options;
  options.echo_exit_code = 4;
  const bool has_met = point != "before-join" && !point.starts_with("start:");
  options.settle = std::chrono::milliseconds(has_met ? 10'000 : 200);
  options.on_stderr = [&](int rank, std::string_view line) {
    const std::string text(line);
    long long us = 0;
    int used = 0;
    if (std::sscanf(text.c_str(), "killed %lld", &us) == 1) killed_us = us;
    if (std::sscanf(text.c_str(), "heard %lld %n", &us, &used) == 1) {
      heard_us.push_back(us);
      result.heard[static_cast<std::size_t>(rank)] = text.substr(static_cast<std::size_t>(used));
    }
  };
  result.launch = launch_processes({PENSTOCK_RANK_PROGRAM, "job", std::to_string(victim), point},
                                   size, options);
  for (const long long us : heard_us) {
    result.latencies_ms.push_back(static_cast<double>(us - killed_us) / 1000.0);
  }
  return result;
}

/// Every other rank must have raised PeerFailed, and in time.
void expect_all_heard(const JobResult& result, int victim) {
  EXPECT_EQ(result.launch.first_failure, (ProcessEnd{.rank = victim, .signal = SIGKILL}));
  for (const ProcessEnd& end : result.launch.ends) {
    if (end.rank == victim) continue;
    EXPECT_EQ(end, (ProcessEnd{.rank = end.rank, .exit_code = 4})) << to_string(end);
    const std::string& heard = result.heard[static_cast<std::size_t>(end.rank)];
    EXPECT_THAT(heard, testing::StartsWith("PeerFailed: "));
    EXPECT_THAT(heard, testing::HasSubstr("ended or its connection broke")) << end.rank;
  }
}

void report_latencies(const std::string& what, std::vector<double> latencies) {
  if (latencies.empty()) return;
  std::sort(latencies.begin(), latencies.end());
  const double sum = std::accumulate(latencies.begin(), latencies.end(), 0.0);
  std::printf("[ latency  ] %s: mean %.1f ms, worst %.1f ms, %zu ranks\n", what.c_str(),
              sum / static_cast<double>(latencies.size()), latencies.back(), latencies.size());
}

class KilledRank : public testing::TestWithParam<int> {};

TEST_P(KilledRank, IsNamedByTheOthersAtEveryPoint) {
  const int size = GetParam();
  std::vector<double> latencies;
  int victim = 0;
  for (const char* point :
       {"joined", "split", "step0", "step0-gathered", "step1-exchanged", "step1-end", "step2"}) {
    SCOPED_TRACE(std::to_string(size) + " ranks, rank " + std::to_string(victim) + " at " + point);
    const JobResult result = run_job(size, victim, point);
    expect_all_heard(result, victim);
    for (const std::string& heard : result.heard) {
      if (heard.empty()) continue;
      EXPECT_THAT(heard,
                  testing::ContainsRegex("rank " + std::to_string(victim) +
                                         "( of the whole group)? failed|\\(" +
                                         std::to_string(victim) + " in the whole group\\) failed"));
    }
    latencies.insert(latencies.end(), result.latencies_ms.begin(), result.latencies_ms.end());
    victim = (victim + 1) % size;
  }
  report_latencies("killed at a point, " + std::to_string(size) + " ranks", latencies);
}

TEST_P(KilledRank, IsNoticedAtAnyMoment) {
  const int size = GetParam();
  std::vector<double> latencies;
  std::mt19937 random(static_cast<unsigned>(size));
  for (int round = 0; round < 8; ++round) {
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    const std::string point = "after:" + std::to_string(random() % 30'000);
    SCOPED_TRACE("rank " + std::to_string(victim) + " " + point);
    const JobResult result = run_job(size, victim, point);
    expect_all_heard(result, victim);
    latencies.insert(latencies.end(), result.latencies_ms.begin(), result.latencies_ms.end());
  }
  report_latencies("killed at any moment, " + std::to_string(size) + " ranks", latencies);
}

TEST_P(KilledRank, IsReportedWhenItDiesDuringTheMeeting) {
  const int size = GetParam();
  std::mt19937 random(static_cast<unsigned>(size));
  for (int round = 0; round < 4; ++round) {
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    const std::string point =
        round == 0 ? "before-join" : "start:" + std::to_string(random() % 5'000);
    SCOPED_TRACE("rank " + std::to_string(victim) + " " + point);
    const JobResult result = run_job(size, victim, point);
    EXPECT_EQ(result.launch.first_failure, (ProcessEnd{.rank = victim, .signal = SIGKILL}));
    // Who has not met the dead rank cannot miss it: those are ended by the launcher.
    for (const ProcessEnd& end : result.launch.ends) EXPECT_TRUE(end.is_failure()) << end.rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Processes, KilledRank, testing::Values(2, 4, 8),
                         [](const auto& param) { return "ranks" + std::to_string(param.param); });

}  // namespace
}  // namespace penstock
