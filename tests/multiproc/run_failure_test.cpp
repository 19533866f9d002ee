// Ranks of `penstock run` are killed, or leave without a word, at every named point. The others must
// end with an error that names the rank, leave nothing behind, and not stand in the way of a restart.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/environment.hpp"
#include "run_model.hpp"
#include "support/isolation.hpp"

namespace penstock {
namespace {

using test::TimedResult;

/// The longest that the others may take to end.
constexpr std::chrono::seconds kLongest{10};

enum class Ranks { Processes, Threads, Mpi };

struct Event {
  std::string point;
  Ranks ranks = Ranks::Processes;
  std::string layout;
  int size = 2;
  int victim = 0;
  std::string how = "kill";
  int passing = 1;

  std::string variable() const { return fmt::format("{}:{}:{}:{}", point, victim, how, passing); }
  std::string text() const {
    return fmt::format("{} {} {}", variable(), layout,
                       ranks == Ranks::Threads     ? "(threads)"
                       : ranks == Ranks::Processes ? "(processes)"
                                                   : "(mpirun)");
  }
};

struct Layout {
  const char* words;
  int size;
};

// Ranks that exchange in every step, and ranks that need each other only at start and end.
constexpr Layout kLayouts[] = {
    {"--dp 2", 2},
    {"--tp 2", 2},
    {"--dp 3 --placement host --dp-shard", 3},
    {"--dp 2 --tp 2", 4},
    {"--tp 4 --sp", 4},
    {"--pp 2 --pp-cuts 14 --placement host", 2},
    {"--tp 2 --dp 2 --placement host --dp-shard", 4},
};

Event random_event(std::mt19937& random, const std::string& point, Ranks ranks,
                   const std::string& how) {
  const Layout& layout = kLayouts[random() % std::size(kLayouts)];
  Event event{.point = point, .ranks = ranks, .layout = layout.words, .size = layout.size};
  event.victim = static_cast<int>(random() % static_cast<unsigned>(layout.size));
  event.how = how;
  // Each layer of a rank passes the points of its load once, each step those of a step.
  const bool has_two_layers = event.layout.find("--pp") == std::string::npos;
  if (point.starts_with("load.") && has_two_layers) event.passing += static_cast<int>(random() % 2);
  if (point.starts_with("step.")) event.passing += static_cast<int>(random() % 3);
  return event;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// The command line of an event; without the failure if it is to succeed.
test::TimedCommand command_of(const test::RunModel& model, const Event& event, bool fails) {
  test::TimedCommand command = model.command(words_of(event.layout));
  if (event.ranks == Ranks::Processes) command.argv.emplace_back("--processes");
  if (event.ranks == Ranks::Mpi) {
    command.argv.insert(command.argv.end(), {"--engine", "mpi"});
    command.argv.insert(command.argv.begin(), {PENSTOCK_MPIEXEC, "--oversubscribe", "--bind-to",
                                               "none", "-n", std::to_string(event.size)});
    command.environment.insert(
        command.environment.end(),
        {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}});
  }
  if (fails) command.environment.emplace_back("PENSTOCK_FAIL_AT", event.variable());
  command.limit = 3 * kLongest;
  return command;
}

/// Whether a message blames world rank `rank`.
bool names(const std::string& message, int rank) {
  const std::string patterns[] = {fmt::format("rank {} failed", rank),
                                  fmt::format("({} in the whole group) failed", rank),
                                  fmt::format("rank {} of the whole group failed", rank),
                                  fmt::format("rank {} was killed by signal 9", rank)};
  return std::ranges::any_of(patterns,
                             [&](const auto& p) { return message.find(p) != std::string::npos; });
}

/// Every other rank must have said which rank failed. One that comes to the meeting point just as
/// rank 0 gives up can only miss that one.
void expect_ranks_to_name(const Event& event, const TimedResult& result) {
  for (int rank = 0; rank < event.size; ++rank) {
    if (rank == event.victim) continue;
    const auto* line = result.find(fmt::format("[rank {}] penstock: error: ", rank));
    ASSERT_NE(line, nullptr) << "rank " << rank << " said nothing\n" << result.text();
    const bool can_miss_rank_zero = event.point == "start.launched";
    EXPECT_TRUE(names(line->text, event.victim) || (can_miss_rank_zero && names(line->text, 0)))
        << line->text;
  }
}

void expect_clean_error(const Event& event, const TimedResult& result) {
  EXPECT_FALSE(result.is_late);
  EXPECT_TRUE(result.out.empty());
  ASSERT_FALSE(result.err.empty());
  if (event.ranks == Ranks::Mpi) {
    // mpirun has the last word, and its own exit code.
    EXPECT_NE(result.exit_code, 0);
    return;
  }
  EXPECT_EQ(result.exit_code, 4) << result.text();
  const std::string& last = result.err.back().text;
  EXPECT_THAT(last, testing::StartsWith("penstock: error: "));
  EXPECT_TRUE(names(last, event.victim)) << result.text();
  if (event.ranks == Ranks::Processes) expect_ranks_to_name(event, result);
}

/// Milliseconds from an event to the end of the command; runs it and checks what it leaves.
double run_event(const test::RunModel& model, const Event& event) {
  const TimedResult result = test::run_timed(command_of(model, event, true));
  const auto* failed = result.find(fmt::format("PENSTOCK_FAIL_AT: rank {} ", event.victim));
  if (failed == nullptr) {
    ADD_FAILURE() << "the point was not reached\n" << result.text();
    return 0;
  }
  const auto taken = result.ended - failed->at;
  EXPECT_LT(taken, kLongest);
  expect_clean_error(event, result);
  EXPECT_TRUE(test::has_no_children(kLongest));
  EXPECT_THAT(test::leftovers(model.temporary()), testing::IsEmpty());
  return std::chrono::duration<double, std::milli>(taken).count();
}

void expect_restart(const test::RunModel& model, const Event& event) {
  test::TimedCommand command = command_of(model, event, false);
  command.argv.emplace_back("--verify");
  const TimedResult result = test::run_timed(command);
  EXPECT_EQ(result.exit_code, 0) << result.text();
}

/// How often each point's events are repeated, with other seeds: 1 unless somebody wants more.
int rounds() {
  const auto text = environment_variable("PENSTOCK_TEST_ROUNDS");
  return text ? std::stoi(*text) : 1;
}

/// A test for one of the twelve points.
class RunFailure : public testing::TestWithParam<std::string> {
 protected:
  RunFailure() {
    if (!test::isolate_process()) {
      std::puts("no right to make namespaces: sockets of others are seen too");
    }
  }

  void run(const Event& event) {
    SCOPED_TRACE(event.text());
    latencies_.push_back(run_event(model_, event));
    std::printf("[ event    ] %s: %.0f ms\n", event.text().c_str(), latencies_.back());
    last_ = event;
  }

  void report() {
    const double sum = std::accumulate(latencies_.begin(), latencies_.end(), 0.0);
    std::printf("[ latency  ] %s: mean %.0f ms, worst %.0f ms, %zu events\n", GetParam().c_str(),
                sum / static_cast<double>(latencies_.size()),
                *std::max_element(latencies_.begin(), latencies_.end()), latencies_.size());
    expect_restart(model_, last_);
  }

  test::RunModel model_;
  std::vector<double> latencies_;
  Event last_;
};

TEST_P(RunFailure, EndsTheOthersInTimeAndLeavesNothing) {
  std::mt19937 random(std::accumulate(GetParam().begin(), GetParam().end(), 7U));
  for (int round = 0; round < rounds(); ++round) {
    run(random_event(random, GetParam(), Ranks::Processes, "kill"));
    run(random_event(random, GetParam(), Ranks::Threads, "leave"));
    run(random_event(random, GetParam(), Ranks::Processes, "kill"));
    run(random_event(random, GetParam(), Ranks::Processes, "leave"));
  }
  if (GetParam().starts_with("load.")) {
    // The rank that makes and fills the memory that the others share.
    run({.point = GetParam(), .layout = "--dp 3 --placement host_shared", .size = 3, .victim = 0});
  }
  report();
}

INSTANTIATE_TEST_SUITE_P(Points, RunFailure,
                         testing::Values("start.launched", "start.joined", "start.groups",
                                         "load.create", "load.reserve", "load.map", "load.rows",
                                         "load.seal", "step.ids", "step.reads", "step.rows",
                                         "step.inject"),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

class RunFailureUnderMpirun : public RunFailure {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RunFailureUnderMpirun);  // a build without MPI

/// A job costs a second to start: one point for each part of a run.
std::vector<std::string> mpi_points() {
  if (std::string(PENSTOCK_MPIEXEC).empty()) return {};
  return {"start.joined", "load.map", "step.reads"};
}

TEST_P(RunFailureUnderMpirun, EndsTheJobAndLeavesNothing) {
  std::mt19937 random(11);
  for (int round = 0; round < rounds(); ++round) {
    run(random_event(random, GetParam(), Ranks::Mpi, "kill"));
  }
  report();
}

INSTANTIATE_TEST_SUITE_P(Points, RunFailureUnderMpirun, testing::ValuesIn(mpi_points()),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace penstock
