// The memory of eight processes with a table of 1 GiB: one copy with host_shared, eight with host.

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <string>

#include "run_model.hpp"

namespace penstock {
namespace {

using nlohmann::json;

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;
constexpr int kProcesses = 8;

/// One layer of 4 069 590 rows of 264 bytes, which is 1 GiB and half a megabyte; the projections are
/// as small as they can be, because every process has its own.
std::vector<std::string> big_table_words() {
  return {"--layers",
          "1",
          "--engram-vocab-size",
          "169400",
          "--hidden",
          "32",
          "--hc",
          "1",
          "--vocab-size",
          "500",
          "--compressed-vocab-size",
          "500",
          "--bf16",
          "--sparse"};
}

std::int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::int64_t kib = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return 0;
}

/// Growth of the memory of all ranks, and what the report says it is for.
json run_with(const std::string& placement) {
  const test::RunModel model(big_table_words());
  test::TimedCommand command =
      model.command({"--dp", std::to_string(kProcesses), "--processes", "--placement", placement,
                     "--rows", "random:1", "--stand-in", "0", "--json"});
  command.limit = std::chrono::seconds(110);
  const test::TimedResult result = test::run_timed(command);
  if (result.exit_code != 0) throw std::runtime_error(result.text());
  return json::parse(result.out.at(0).text)["memory"];
}

void expect_copies(const json& memory, int copies) {
  const auto tables = memory["table_bytes"].get<std::int64_t>();
  const auto staging = memory["staging_bytes"].get<std::int64_t>();
  const auto growth = memory["growth_bytes"].get<std::int64_t>();
  EXPECT_NEAR(static_cast<double>(tables), static_cast<double>(copies * kGibibyte),
              0.001 * static_cast<double>(copies * kGibibyte));
  const auto needed = static_cast<double>(tables + staging);
  std::printf("%d copies: grew by %.3f GiB, %.3f of tables and staging\n", copies,
              static_cast<double>(growth) / static_cast<double>(kGibibyte),
              static_cast<double>(growth) / needed);
  EXPECT_NEAR(static_cast<double>(growth), needed, 0.03 * needed);
}

TEST(RunMemory, IsOneTableForEightProcessesThatShareIt) {
  expect_copies(run_with("host_shared"), 1);
}

TEST(RunMemory, IsEightTablesForEightProcessesThatDoNot) {
  const std::int64_t needed = (kProcesses + 1) * kGibibyte;
  if (available_bytes() < needed) {
    GTEST_SKIP() << "eight tables of 1 GiB need " << needed << " bytes, the machine has "
                 << available_bytes();
  }
  expect_copies(run_with("host"), kProcesses);
}

}  // namespace
}  // namespace penstock
