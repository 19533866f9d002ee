#include "table/sharing/memory_limit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"

namespace penstock {
namespace {

namespace fs = std::filesystem;

/// Folders that look like /proc and /sys/fs/cgroup.
class MemoryLimit : public testing::Test {
 protected:
  MemoryLimit() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::temp_directory_path() /
            ("penstock_memory_limit_" + std::to_string(::getpid()) + "_" + test->name());
    files_ = {.proc = root_ / "proc", .sys = root_ / "sys", .cgroup = root_ / "cgroup"};
  }
  ~MemoryLimit() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  fs::path root_;
  detail::MemoryFiles files_;
};

TEST_F(MemoryLimit, IsNothingWithoutControlGroups) {
  EXPECT_FALSE(detail::memory_limit(files_).has_value());
  EXPECT_NO_THROW(detail::check_memory_limit(std::int64_t{1} << 50, files_));
}

TEST_F(MemoryLimit, CountsPageCacheAsFreeUnderVersion2) {
  write("proc/self/cgroup", "0::/job\n");
  write("cgroup/job/memory.max", "1000000\n");
  write("cgroup/job/memory.current", "700000\n");
  write("cgroup/job/memory.stat",
        "anon 100000\nfile 600000\nactive_file 200000\n"
        "inactive_file 300000\nshmem 100000\n");
  const auto limit = detail::memory_limit(files_);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->limit_bytes, 1000000);
  EXPECT_EQ(limit->free_bytes, 1000000 - (700000 - 500000));
}

TEST_F(MemoryLimit, TakesTheTightestOfAGroupAndItsParents) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("cgroup/a/memory.max", "500\n");
  write("cgroup/a/memory.current", "100\n");
  write("cgroup/a/b/memory.max", "max\n");
  write("cgroup/a/b/memory.current", "100\n");
  const auto limit = detail::memory_limit(files_);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->free_bytes, 400);
  EXPECT_EQ(limit->group, (root_ / "cgroup/a").string());
}

TEST_F(MemoryLimit, FindsTheContainersRootWhereTheGroupsPathIsTheHosts) {
  write("proc/self/cgroup", "0::/docker/0123\n");
  write("cgroup/memory.max", "900\n");
  write("cgroup/memory.current", "100\n");
  ASSERT_TRUE(detail::memory_limit(files_).has_value());
  EXPECT_EQ(detail::memory_limit(files_)->free_bytes, 800);
}

TEST_F(MemoryLimit, UnderstandsVersion1) {
  write("proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/job\n0::/\n");
  write("cgroup/memory/job/memory.limit_in_bytes", "1000\n");
  write("cgroup/memory/job/memory.usage_in_bytes", "600\n");
  write("cgroup/memory/job/memory.stat", "cache 500\ntotal_inactive_file 50\n");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("cgroup/memory/memory.usage_in_bytes", "600\n");
  const auto limit = detail::memory_limit(files_);
  ASSERT_TRUE(limit.has_value());
  EXPECT_EQ(limit->free_bytes, 450);
}

TEST_F(MemoryLimit, IgnoresFilesThatMakeNoSense) {
  write("proc/self/cgroup", "nonsense\n0::/job\n7\n::\n");
  write("cgroup/job/memory.max", "a lot\n");
  write("cgroup/job/memory.current", "\n");
  EXPECT_FALSE(detail::memory_limit(files_).has_value());
}

TEST_F(MemoryLimit, RefusesWhatTheGroupWouldBeKilledFor) {
  write("proc/self/cgroup", "0::/job\n");
  write("cgroup/job/memory.max", "1000\n");
  write("cgroup/job/memory.current", "300\n");
  EXPECT_NO_THROW(detail::check_memory_limit(700, files_));
  try {
    detail::check_memory_limit(701, files_);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
    EXPECT_THAT(error.what(), testing::HasSubstr("701 bytes"));
    EXPECT_THAT(error.what(), testing::HasSubstr("700 of its 1000 bytes"));
  }
}

TEST_F(MemoryLimit, OnlyWarnsWhereTheMachineHasLessAvailableNow) {
  write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   20 kB\n");
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view text) { warnings.emplace_back(text); });
  EXPECT_NO_THROW(detail::check_memory_limit(20 * 1024, files_));
  EXPECT_TRUE(warnings.empty());
  EXPECT_NO_THROW(detail::check_memory_limit(30 * 1024, files_));
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], testing::HasSubstr("20 KiB"));
}

TEST_F(MemoryLimit, RefusesMoreThanANumaNodeHas) {
  EXPECT_NO_THROW(detail::check_node_memory(1000 * 1024, 1, files_));  // the kernel does not tell
  write("sys/devices/system/node/node1/meminfo",
        "Node 1 MemTotal:  999 kB\nNode 1 MemFree: 5 kB\n");
  EXPECT_NO_THROW(detail::check_node_memory(1000 * 1024, 0, files_));
  EXPECT_NO_THROW(detail::check_node_memory(999 * 1024, 1, files_));
  EXPECT_THROW(detail::check_node_memory(1000 * 1024, 1, files_), Error);
}

}  // namespace
}  // namespace penstock
