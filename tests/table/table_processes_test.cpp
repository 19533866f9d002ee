#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "penstock/table/table_view.hpp"
#include "support/child_process.hpp"
#include "support/huge_pages.hpp"
#include "support/sanitizers.hpp"

namespace penstock {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

/// What is done to the processes of a group.
struct Ordeal {
  int dying_rank = -1;          ///< Kills itself,
  std::string stage = "none";   ///< at the start of this stage.
  std::string procs_file = {};  ///< Of a control group that all of them enter.
  std::string backing = "auto";
};

/// Processes that open one shared table.
class RankProcesses {
 public:
  RankProcesses(int size, std::int64_t rows, const Ordeal& ordeal = {}) {
    static int groups = 0;
    const std::string address =
        "unix:@penstock-test-" + std::to_string(::getpid()) + "-" + std::to_string(groups++);
    for (int rank = 0; rank < size; ++rank) {
      std::vector<std::string> arguments{PENSTOCK_TABLE_RANK, std::to_string(rank),
                                         std::to_string(size), address, std::to_string(rows)};
      arguments.push_back(rank == ordeal.dying_rank ? ordeal.stage : "none");
      arguments.push_back(ordeal.backing);
      if (!ordeal.procs_file.empty()) arguments.push_back(ordeal.procs_file);
      processes_.push_back(std::make_unique<test::ChildProcess>(arguments));
    }
  }

  std::string line_of(int rank) { return processes_[static_cast<std::size_t>(rank)]->read_line(); }

 private:
  std::vector<std::unique_ptr<test::ChildProcess>> processes_;
};

constexpr const char* kWeighs = "weighs memory, and a sanitizer's shadow weighs too";
constexpr std::int64_t kLimitBytes = std::int64_t{128} << 20;

TEST(TableProcesses, ShareOneCopy) {
  if (!test::kSanitizers.empty()) GTEST_SKIP() << kWeighs;
  constexpr int kProcesses = 4;
  constexpr std::int64_t kRows = (std::int64_t{64} << 20) / row_record_bytes(256);
  RankProcesses processes(kProcesses, kRows);
  std::int64_t growth = 0;
  std::set<std::string> checksums;
  for (int rank = 0; rank < kProcesses; ++rank) {
    const std::string line = processes.line_of(rank);
    std::istringstream words(line);
    std::string verdict;
    std::string checksum;
    std::int64_t bytes = 0;
    words >> verdict >> bytes >> checksum;
    ASSERT_EQ(verdict, "ok") << line;
    growth += bytes;
    checksums.insert(checksum);
  }
  EXPECT_EQ(checksums.size(), 1U);
  const double table_bytes = static_cast<double>(kRows) * row_record_bytes(256);
  RecordProperty("pss_growth_over_table",
                 std::to_string(static_cast<double>(growth) / table_bytes));
  EXPECT_NEAR(static_cast<double>(growth), table_bytes, 0.03 * table_bytes);
}

/// A control group of version 1 below this process's own, with a memory limit.
class LimitedGroup {
 public:
  explicit LimitedGroup(std::int64_t limit_bytes) {
    std::ifstream groups("/proc/self/cgroup");
    std::string line;
    while (std::getline(groups, line)) {
      const auto at = line.find(":memory:");
      if (at == std::string::npos) continue;
      folder_ = fs::path("/sys/fs/cgroup/memory") / fs::path(line.substr(at + 8)).relative_path() /
                ("penstock-test-" + std::to_string(::getpid()));
    }
    std::error_code error;
    if (folder_.empty() || !fs::create_directory(folder_, error)) return;
    std::ofstream limit(folder_ / "memory.limit_in_bytes");
    is_limited_ = static_cast<bool>(limit << limit_bytes << std::flush);
  }
  ~LimitedGroup() {
    std::error_code ignored;
    if (!folder_.empty()) fs::remove(folder_, ignored);
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  bool is_limited() const { return is_limited_; }
  std::string procs_file() const { return (folder_ / "cgroup.procs").string(); }

 private:
  fs::path folder_;
  bool is_limited_ = false;
};

constexpr const char* kNoGroups = "needs the right to make a control group of version 1";

TEST(TableProcesses, AMemoryLimitIsAnErrorOnAllRanksAndKillsNobody) {
  const LimitedGroup group(kLimitBytes);
  if (!group.is_limited()) GTEST_SKIP() << kNoGroups;
  RankProcesses processes(2, 2 * kLimitBytes / row_record_bytes(256),
                          {.procs_file = group.procs_file()});
  const std::string creator = processes.line_of(0);
  EXPECT_THAT(creator, StartsWith("error OutOfMemory Table::open: stage create: rank 0: "));
  EXPECT_THAT(creator, HasSubstr("of its " + std::to_string(kLimitBytes) + " bytes free"));
  EXPECT_THAT(processes.line_of(1), StartsWith("error PeerFailed"));
}

// Four copies would be twice the limit.
TEST(TableProcesses, AreChargedForOneTableTogether) {
  if (!test::kSanitizers.empty()) GTEST_SKIP() << kWeighs;
  const LimitedGroup group(kLimitBytes);
  if (!group.is_limited()) GTEST_SKIP() << kNoGroups;
  RankProcesses processes(4, kLimitBytes / 2 / row_record_bytes(256),
                          {.procs_file = group.procs_file()});
  for (int rank = 0; rank < 4; ++rank) EXPECT_THAT(processes.line_of(rank), StartsWith("ok "));
}

struct Death {
  int rank = 0;
  const char* stage = "";
};

void PrintTo(const Death& death, std::ostream* out) {
  *out << "rank_" << death.rank << "_at_" << death.stage;
}

class TableProcessesDeath : public testing::TestWithParam<Death> {};

/// Lets a rank die and looks at what the others say.
void expect_death_is_told(const Death& death, const std::string& backing) {
  RankProcesses processes(3, 1000,
                          {.dying_rank = death.rank, .stage = death.stage, .backing = backing});
  for (int rank = 0; rank < 3; ++rank) {
    const std::string line = processes.line_of(rank);
    if (rank == death.rank) {
      EXPECT_EQ(line, "");
      continue;
    }
    EXPECT_THAT(line, StartsWith("error PeerFailed Table::open: stage "));
    EXPECT_THAT(line, HasSubstr("rank " + std::to_string(death.rank)));
  }
}

TEST_P(TableProcessesDeath, EndsTheOthersWithAnErrorThatNamesTheRank) {
  expect_death_is_told(GetParam(), "memfd");
}

TEST_P(TableProcessesDeath, GivesHugePagesBackToThePool) {
  const test::HugePages pages(4);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const std::int64_t free_pages = test::HugePages::free_pages();
  expect_death_is_told(GetParam(), "hugetlb");
  EXPECT_EQ(test::HugePages::free_pages(), free_pages);
}

TEST(TableProcesses, ShareOneCopyOfHugePages) {
  const test::HugePages pages(4);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const std::int64_t free_pages = test::HugePages::free_pages();
  RankProcesses huge(3, 1000, {.backing = "hugetlb"});
  RankProcesses ordinary(1, 1000, {.backing = "memfd"});
  const auto sum_of = [](const std::string& line) { return line.substr(line.rfind(' ')); };
  const std::string expected = ordinary.line_of(0);
  ASSERT_THAT(expected, StartsWith("ok "));
  for (int rank = 0; rank < 3; ++rank) {
    const std::string line = huge.line_of(rank);
    ASSERT_THAT(line, StartsWith("ok "));
    EXPECT_EQ(sum_of(line), sum_of(expected));
  }
  EXPECT_EQ(test::HugePages::free_pages(), free_pages - 1);  // 264,000 bytes, whoever reads
}

INSTANTIATE_TEST_SUITE_P(Kill9, TableProcessesDeath,
                         testing::Values(Death{0, "create"}, Death{0, "reserve"}, Death{0, "map"},
                                         Death{0, "load"}, Death{0, "seal"}, Death{1, "map"},
                                         Death{2, "load"}, Death{1, "seal"}, Death{0, "pin"}),
                         [](const auto& param) { return testing::PrintToString(param.param); });

}  // namespace
}  // namespace penstock
