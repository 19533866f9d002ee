// What else happens to `penstock run` on a machine: a rank that hangs, a launcher that is killed, two jobs
// at once, memory and files that cannot be had.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "run_model.hpp"
#include "support/isolation.hpp"
#include "support/sanitizers.hpp"

namespace penstock {
namespace {

using test::TimedResult;
using testing::HasSubstr;

class RunOrdeal : public testing::Test {
 protected:
  RunOrdeal() : is_isolated_(test::isolate_process()) {}

  void expect_nothing_left() const {
    EXPECT_TRUE(test::has_no_children(std::chrono::seconds(10)));
    EXPECT_THAT(test::leftovers(model_.temporary()), testing::IsEmpty());
  }

  test::RunModel model_;
  bool is_isolated_;
};

/// The process of rank `rank` among the children of `launcher`; -1 if there is none.
int process_of_rank(int launcher, int rank) {
  std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", launcher));
  for (int pid = 0; children >> pid;) {
    std::ifstream environment(fmt::format("/proc/{}/environ", pid));
    for (std::string entry; std::getline(environment, entry, '\0');) {
      if (entry == fmt::format("PENSTOCK_RANK={}", rank)) return pid;
    }
  }
  return -1;
}

/// Many steps, so that something can be done to the ranks while they work.
test::TimedCommand long_run(const test::RunModel& model, const std::string& deadline) {
  std::string ids = "[[1";
  for (int i = 0; i < 20'000; ++i) ids += ",7";
  test::TimedCommand command =
      model.command({"--tp", "3", "--processes", "--deadline", deadline, "--chunk", "1"});
  std::ranges::replace(command.argv, model.tokens(), model.write(ids + "]]"));
  return command;
}

/// Waits until a rank has a table, and gives its process; -1 if that does not come.
int wait_for_work(int launcher, int rank) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (std::chrono::steady_clock::now() < deadline) {
    const int pid = process_of_rank(launcher, rank);
    std::ifstream maps(fmt::format("/proc/{}/maps", pid));
    for (std::string line; std::getline(maps, line);) {
      if (line.find("penstock-table") != std::string::npos) return pid;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return -1;
}

TEST_F(RunOrdeal, GivesUpARankThatStandsStill) {
  // Long enough that a busy machine lets the other ranks answer in time.
  test::TimedCommand command = long_run(model_, "4");
  std::thread stopper;
  command.on_start = [&](int launcher) {
    stopper = std::thread([launcher] {
      const int rank = wait_for_work(launcher, 1);
      if (rank > 0) ::kill(rank, SIGSTOP);
    });
  };
  const TimedResult result = test::run_timed(command);
  stopper.join();
  EXPECT_FALSE(result.is_late);
  EXPECT_EQ(result.exit_code, 4) << result.text();
  EXPECT_TRUE(result.out.empty());
  for (const int rank : {0, 2}) {
    const auto* line = result.find(fmt::format("[rank {}] penstock: error: ", rank));
    ASSERT_NE(line, nullptr) << result.text();
    EXPECT_THAT(line->text, HasSubstr("rank 1 failed: did not answer within 4000 ms"));
  }
  expect_nothing_left();
}

TEST_F(RunOrdeal, LeavesNothingWhenTheLauncherIsKilled) {
  test::TimedCommand command = long_run(model_, "20");
  std::thread killer;
  command.on_start = [&](int launcher) {
    killer = std::thread([launcher] {
      wait_for_work(launcher, 2);
      ::kill(launcher, SIGKILL);
    });
  };
  const TimedResult result = test::run_timed(command);
  killer.join();
  EXPECT_EQ(result.exit_code, -1);
  expect_nothing_left();
}

TEST_F(RunOrdeal, TwoJobsAtOnceDoNotMeet) {
  std::vector<TimedResult> results(4);
  {
    std::vector<std::jthread> threads;
    for (TimedResult& result : results) {
      threads.emplace_back([&] {
        result = test::run_timed(model_.command({"--dp", "2", "--processes", "--verify"}));
      });
    }
  }
  for (const TimedResult& result : results) EXPECT_EQ(result.exit_code, 0) << result.text();
  expect_nothing_left();
}

TEST_F(RunOrdeal, TwoJobsAtOneAddressAreAnErrorOfTheSecond) {
  const std::string address = fmt::format("unix:@penstock-test-twice-{}", ::getpid());
  const auto start_rank_zero = [&] {
    test::TimedCommand command = model_.command({"--dp", "2", "--deadline", "3"});
    command.environment.insert(
        command.environment.end(),
        {{"PENSTOCK_RANK", "0"}, {"PENSTOCK_SIZE", "2"}, {"PENSTOCK_ADDRESS", address}});
    return test::run_timed(command);
  };
  TimedResult first;
  std::jthread thread([&] { first = start_rank_zero(); });
  const TimedResult second = start_rank_zero();
  thread.join();
  EXPECT_EQ(first.exit_code, 4);
  EXPECT_EQ(second.exit_code, 4);
  const std::string both = first.text() + second.text();
  EXPECT_THAT(both, HasSubstr("cannot listen at " + address));
  EXPECT_THAT(both, HasSubstr("rank 1"));  // who the other one waited for
}

// An error of the environment has the exit code of a failed peer; the one that failed must be named.
class RunOutOf : public RunOrdeal {
 protected:
  /// Eight ranks under `limit`, a command of bash; the last line names one of them and has `piece`.
  void expect_culprit(const std::string& limit, const std::string& piece) {
    test::TimedCommand command = model_.command({"--dp", "8", "--processes", "--deadline", "60"});
    command.argv.insert(command.argv.begin(), {"/bin/bash", "-c", limit + "; exec \"$@\"", "bash"});
    const auto begin = std::chrono::steady_clock::now();
    const TimedResult result = test::run_timed(command);
    EXPECT_LT(result.ended - begin, std::chrono::seconds(45));  // found, not waited for
    EXPECT_EQ(result.exit_code, 4) << result.text();
    EXPECT_TRUE(result.out.empty());
    EXPECT_THAT(result.err.back().text, testing::StartsWith("penstock: error: rank "));
    EXPECT_THAT(result.err.back().text, HasSubstr("ended with exit code 4: "));
    EXPECT_THAT(result.err.back().text, HasSubstr(piece)) << result.text();
    EXPECT_THAT(result.err.back().text, testing::Not(HasSubstr("failed: "))) << result.text();
    expect_nothing_left();
  }
};

TEST_F(RunOutOf, FileSizeNamesTheRankAndNotTheOthers) {
  expect_culprit("ulimit -f 10", "the file size limit");
}

TEST_F(RunOutOf, DescriptorsNamesTheRankAndNotTheOthers) {
  if (test::kSanitizers.find("undefined") != std::string_view::npos) {
    GTEST_SKIP() << "the sanitizer opens a pipe to find out whether it may read an object's type";
  }
  expect_culprit("ulimit -n 24", "Too many open files");
}

TEST_F(RunOrdeal, AResultThatCannotBeWrittenIsAnError) {
  for (const std::string redirection : {">/dev/full", ">&-", ">&3"}) {
    for (const char* ranks : {"--dp 2", "--dp 2 --processes"}) {
      test::TimedCommand command = model_.command({});
      // At 3 is a pipe that nobody reads any more.
      command.argv.insert(
          command.argv.begin(),
          {"/bin/bash", "-c",
           "exec 3> >(:); wait $!; \"$@\" " + std::string(ranks) + " " + redirection, "bash"});
      const TimedResult result = test::run_timed(command);
      EXPECT_EQ(result.exit_code, 4) << ranks << redirection;
      EXPECT_THAT(result.text(), HasSubstr("cannot write to the standard output"));
    }
  }
}

TEST_F(RunOrdeal, AFileThatMayNotGrowIsAnErrorThatLeavesNoPartOfIt) {
  const std::filesystem::path out = model_.temporary() / "out";
  for (const char* ranks : {"--dp 2", "--dp 2 --processes"}) {
    test::TimedCommand command = model_.command({"--placement", "file", "--out", out.string()});
    command.argv.insert(
        command.argv.begin(),
        {"/bin/bash", "-c", "ulimit -f 8; exec \"$@\" " + std::string(ranks), "bash"});
    const TimedResult result = test::run_timed(command);
    EXPECT_EQ(result.exit_code, 4) << result.text();
    EXPECT_TRUE(result.out.empty());
    EXPECT_THAT(result.err.back().text, testing::StartsWith("penstock: error: "));
    EXPECT_THAT(result.err.back().text, HasSubstr("File too large"));
    EXPECT_TRUE(std::filesystem::is_empty(out));
  }
}

TEST_F(RunOrdeal, NeedsNothingOfDevShm) {
  if (!is_isolated_) GTEST_SKIP() << "needs the right to make a mount namespace";
  ASSERT_EQ(::mount("none", "/dev/shm", "tmpfs", 0, "size=4k"), 0);
  std::ofstream("/dev/shm/full") << std::string(4096, 'x') << std::flush;
  const TimedResult result =
      test::run_timed(model_.command({"--dp", "3", "--processes", "--verify"}));
  EXPECT_EQ(result.exit_code, 0) << result.text();
}

TEST_F(RunOrdeal, SaysWhichFileItMayNotRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const auto weights = std::filesystem::path(model_.model()) / "model-00002-of-00003.safetensors";
  ASSERT_TRUE(std::filesystem::exists(weights));
  std::filesystem::permissions(weights, std::filesystem::perms::none);
  test::TimedCommand command = model_.command({"--dp", "2"});
  command.argv.insert(command.argv.begin(),
                      {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
  // Scratch directories are private to their owner; only the file itself is to be in the way.
  const auto scratch = std::filesystem::path(model_.model()).parent_path();
  std::filesystem::permissions(scratch, std::filesystem::perms(0755));
  const TimedResult result = test::run_timed(command);
  EXPECT_THAT(result.exit_code, testing::AnyOf(3, 4)) << result.text();
  EXPECT_TRUE(result.out.empty());
  EXPECT_THAT(result.err.back().text, HasSubstr(weights.string() + ": open: Permission denied"));
}

}  // namespace
}  // namespace penstock
