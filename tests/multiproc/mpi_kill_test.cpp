// A rank under mpirun kills itself: the others must say so before mpirun ends the job.

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace penstock {
namespace {

struct MpiJobResult {
  std::vector<std::string> heard;  ///< One line for each rank that heard of the failure.
  std::vector<double> latencies_ms;
  int status = 0;
};

MpiJobResult run_under_mpirun(int size, int victim, const std::string& point) {
  const std::string command = fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} --oversubscribe --bind-to none "
      "-n {} {} mpi-job {} {} 2>&1",
      PENSTOCK_MPIEXEC, size, PENSTOCK_RANK_PROGRAM, victim, point);
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run mpirun");
  MpiJobResult result;
  long long killed_us = 0;
  std::vector<long long> heard_us;
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), line.size(), pipe) != nullptr) {
    long long us = 0;
    if (std::sscanf(line.data(), "killed %lld", &us) == 1) killed_us = us;
    if (std::sscanf(line.data(), "heard %lld", &us) != 1) continue;
    heard_us.push_back(us);
    result.heard.emplace_back(line.data());
  }
  result.status = ::pclose(pipe);
  for (const long long us : heard_us) {
    result.latencies_ms.push_back(static_cast<double>(us - killed_us) / 1000.0);
  }
  return result;
}

TEST(KilledRankUnderMpirun, IsNamedByTheOthers) {
  constexpr int kSize = 4;
  double sum = 0;
  int count = 0;
  int victim = 0;
  for (const char* point : {"joined", "step1-gathered", "after:20000"}) {
    SCOPED_TRACE(fmt::format("rank {} at {}", victim, point));
    const MpiJobResult result = run_under_mpirun(kSize, victim, point);
    EXPECT_NE(result.status, 0);
    EXPECT_EQ(result.heard.size(), static_cast<std::size_t>(kSize - 1));
    for (const std::string& line : result.heard) {
      EXPECT_THAT(line, testing::HasSubstr("PeerFailed"));
      EXPECT_THAT(line, testing::HasSubstr("its process ended or its connection broke"));
    }
    for (const double latency : result.latencies_ms) sum += latency;
    count += static_cast<int>(result.latencies_ms.size());
    victim = (victim + 2) % kSize + 1;
  }
  std::printf("[ latency  ] killed under mpirun, %d ranks: mean %.1f ms, %d ranks\n", kSize,
              sum / count, count);
}

}  // namespace
}  // namespace penstock
