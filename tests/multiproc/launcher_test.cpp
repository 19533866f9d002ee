#include "penstock/comm/launcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "penstock/core/error.hpp"
#include "support/sanitizers.hpp"

namespace penstock {
namespace {

using Lines = std::vector<std::vector<std::string>>;

LaunchOptions collecting(Lines& lines, int size) {
  lines.assign(static_cast<std::size_t>(size), {});
  LaunchOptions options;
  options.echo_exit_code = 4;
  options.on_stderr = [&lines](int rank, std::string_view line) {
    lines[static_cast<std::size_t>(rank)].emplace_back(line);
  };
  return options;
}

TEST(LaunchProcesses, GivesEachRankItsPlaceAndPassesOnItsMessages) {
  Lines lines;
  testing::internal::CaptureStdout();
  const auto result = launch_processes({PENSTOCK_RANK_PROGRAM, "greet"}, 3, collecting(lines, 3));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "out 0\n") << "rank 0 alone has an output";
  EXPECT_FALSE(result.first_failure);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(result.ends[static_cast<std::size_t>(rank)], ProcessEnd{.rank = rank});
    EXPECT_EQ(lines[static_cast<std::size_t>(rank)],
              (std::vector<std::string>{"err " + std::to_string(rank) + " of 3",
                                        "and a line without an end"}));
  }
}

TEST(LaunchProcesses, ReportsTheFirstFailureAndNotItsEchoes) {
  for (const int culprit : {0, 2}) {
    Lines lines;
    const auto result = launch_processes({PENSTOCK_RANK_PROGRAM, "throw", std::to_string(culprit)},
                                         3, collecting(lines, 3));
    EXPECT_EQ(result.first_failure, (ProcessEnd{.rank = culprit, .exit_code = 3}));
    for (const ProcessEnd& end : result.ends) {
      if (end.rank == culprit) continue;
      EXPECT_EQ(to_string(end), "rank " + std::to_string(end.rank) + " ended with exit code 4");
    }
  }
}

TEST(LaunchProcesses, EndsRanksThatDoNotObey) {
  Lines lines;
  LaunchOptions options = collecting(lines, 3);
  options.settle = std::chrono::milliseconds(50);
  options.grace = std::chrono::milliseconds(50);
  // Ranks inherit it, so that none is told to end before it has learnt to ignore that.
  const auto before = std::signal(SIGTERM, SIG_IGN);
  const auto result = launch_processes({PENSTOCK_RANK_PROGRAM, "ignore"}, 3, options);
  std::signal(SIGTERM, before);
  EXPECT_EQ(result.first_failure, (ProcessEnd{.rank = 0, .exit_code = 3}));
  EXPECT_EQ(to_string(result.ends[2]), "rank 2 was killed by signal 9 (Killed)");
}

/// Waits until a process that only writes has filled its pipe, or is no more.
void wait_until_blocked(int pid) {
  for (char state = 'R'; state == 'R';) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string id;
    std::string name;
    if (!(stat >> id >> name >> state)) return;
  }
}

TEST(LaunchProcesses, IsNotHeldByARankThatNeverStopsTalking) {
  int talker = 0;
  int num_lines = 0;
  LaunchOptions options;
  options.settle = std::chrono::milliseconds(20);
  options.on_started = [&](const std::vector<int>& ids) { talker = ids[1]; };
  options.on_stderr = [&](int, std::string_view) {
    wait_until_blocked(talker);  // so that its pipe is never found empty
    if (++num_lines == 100'000) throw std::runtime_error("the launcher only listens");
  };
  const auto result = launch_processes({PENSTOCK_RANK_PROGRAM, "talk"}, 2, options);
  EXPECT_EQ(result.first_failure, (ProcessEnd{.rank = 0, .exit_code = 3}));
  EXPECT_EQ(result.ends[1], (ProcessEnd{.rank = 1, .signal = SIGTERM}));
}

std::atomic<int> forks_until_stop = 0;  // NOLINT: what a handler of fork can see

TEST(LaunchProcesses, IsNotHeldByARankThatIsStoppedBeforeItsProgramRuns) {
  ::pthread_atfork([] { --forks_until_stop; }, nullptr,
                   [] {
                     if (forks_until_stop == 0) std::raise(SIGSTOP);
                   });
  LaunchOptions options;
  options.settle = std::chrono::milliseconds(20);
  forks_until_stop = 2;
  const auto result = launch_processes({PENSTOCK_RANK_PROGRAM, "talk"}, 2, options);
  EXPECT_EQ(result.first_failure, (ProcessEnd{.rank = 0, .exit_code = 3}));
  EXPECT_EQ(result.ends[1], (ProcessEnd{.rank = 1, .signal = SIGTERM}));
}

// The launcher would end who waits for nothing after five minutes here.
class AbsentRank : public testing::TestWithParam<int> {
 protected:
  /// Everybody but `absent` must say that it is missed.
  static void expect_missed(const LaunchResult& result, const Lines& lines, int absent) {
    const std::string what = "rank " + std::to_string(absent) + " failed: ";
    for (const ProcessEnd& end : result.ends) {
      if (end.rank == absent) continue;
      EXPECT_EQ(end, (ProcessEnd{.rank = end.rank, .exit_code = 4})) << to_string(end);
      EXPECT_THAT(lines[static_cast<std::size_t>(end.rank)],
                  testing::Contains(testing::HasSubstr("PeerFailed: start-up: " + what)));
    }
  }

  static LaunchOptions patient(Lines& lines, int size) {
    LaunchOptions options = collecting(lines, size);
    options.settle = std::chrono::minutes(5);
    return options;
  }
};

TEST_P(AbsentRank, IsMissedAtOnceForWantOfDescriptors) {
  if (test::kSanitizers.find("undefined") != std::string_view::npos) {
    GTEST_SKIP() << "the sanitizer opens a pipe to find out whether it may read an object's type";
  }
  const int size = 4;
  Lines lines;
  const auto result =
      launch_processes({PENSTOCK_RANK_PROGRAM, "stay-away", std::to_string(GetParam()), "poor"},
                       size, patient(lines, size));
  EXPECT_EQ(result.first_failure, (ProcessEnd{.rank = GetParam(), .exit_code = 3}));
  EXPECT_THAT(lines[static_cast<std::size_t>(GetParam())],
              testing::Contains(testing::HasSubstr("Too many open files")));
  expect_missed(result, lines, GetParam());
}

TEST_P(AbsentRank, IsMissedAtOnceAlsoWhenItEndedInGoodOrder) {
  const int size = 4;
  Lines lines;
  const auto result =
      launch_processes({PENSTOCK_RANK_PROGRAM, "stay-away", std::to_string(GetParam()), "quietly"},
                       size, patient(lines, size));
  ASSERT_TRUE(result.first_failure);
  EXPECT_EQ(result.first_failure->exit_code, 4);
  expect_missed(result, lines, GetParam());
}

INSTANTIATE_TEST_SUITE_P(LaunchProcesses, AbsentRank, testing::Values(0, 2),
                         [](const auto& param) { return "rank" + std::to_string(param.param); });

TEST(LaunchProcesses, LeavesNoOrphansWhenItIsKilled) {
  std::vector<int> grandchildren;
  int middle = 0;
  LaunchOptions options;
  options.on_started = [&](const std::vector<int>& ids) { middle = ids[0]; };
  options.on_stderr = [&](int, std::string_view line) {
    constexpr std::string_view kPrefix = "grandchild ";
    if (line.starts_with(kPrefix)) {
      grandchildren.push_back(std::stoi(std::string(line.substr(kPrefix.size()))));
    }
    if (line == "all started") ::kill(middle, SIGKILL);
  };
  const auto result = launch_processes({PENSTOCK_RANK_PROGRAM, "nest"}, 1, options);
  EXPECT_EQ(result.first_failure, (ProcessEnd{.rank = 0, .signal = SIGKILL}));
  ASSERT_EQ(grandchildren.size(), 3U);
  const auto is_alive = [](int id) {
    // A zombie that its new parent has not collected yet is dead enough.
    const std::string path = "/proc/" + std::to_string(id) + "/exe";
    return ::access(path.c_str(), F_OK) == 0;
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::any_of(grandchildren.begin(), grandchildren.end(), is_alive) &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const int id : grandchildren) EXPECT_FALSE(is_alive(id));
}

TEST(LaunchProcesses, RefusesWhatItCannotStart) {
  const auto code_of = [](const std::vector<std::string>& argv, int size) {
    try {
      launch_processes(argv, size);
    } catch (const Error& error) {
      return std::string(to_string(error.code())) + ": " + error.what();
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(code_of({}, 1), testing::HasSubstr("InvalidArgument"));
  EXPECT_THAT(code_of({"sh"}, 1), testing::HasSubstr("must be the path"));
  EXPECT_THAT(code_of({PENSTOCK_RANK_PROGRAM}, 0), testing::HasSubstr("size is 0"));
  EXPECT_THAT(code_of({"/no/such/program"}, 2),
              testing::AllOf(testing::HasSubstr("System"),
                             testing::HasSubstr("/no/such/program: No such file")));
}

TEST(OwnExecutable, IsThisTest) {
  EXPECT_THAT(own_executable(), testing::HasSubstr("multiproc_tests"));
}

}  // namespace
}  // namespace penstock
