#include "penstock/comm/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "comm/launch_environment.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

std::optional<Launch> detect(const std::map<std::string, std::string>& variables) {
  return detail::detect_launch_in([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

void expect_refusal(const std::map<std::string, std::string>& variables, const std::string& what) {
  try {
    (void)detect(variables);
    ADD_FAILURE() << "nothing was thrown for " << what;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr(what));
  }
}

TEST(DetectLaunch, FindsNothingInAnOrdinaryEnvironment) {
  EXPECT_FALSE(detect({}));
  EXPECT_FALSE(detect({{"RANK", "3"}}));
  EXPECT_FALSE(detect({{"WORLD_SIZE", "8"}, {"PATH", "/bin"}}));
}

TEST(DetectLaunch, ReadsOurOwnVariables) {
  const auto launch = detect({{"PENSTOCK_RANK", "2"},
                              {"PENSTOCK_SIZE", "4"},
                              {"PENSTOCK_LOCAL_RANK", "1"},
                              {"PENSTOCK_LOCAL_SIZE", "2"},
                              {"PENSTOCK_ADDRESS", "10.0.0.1:77"}});
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->rank, 2);
  EXPECT_EQ(launch->size, 4);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->local_size, 2);
  EXPECT_EQ(launch->address, "10.0.0.1:77");
  EXPECT_EQ(launch->source, "penstock");
}

TEST(DetectLaunch, ReadsTorchrunOnOneAndOnSeveralMachines) {
  std::map<std::string, std::string> variables{{"RANK", "5"},           {"WORLD_SIZE", "8"},
                                               {"LOCAL_RANK", "5"},     {"LOCAL_WORLD_SIZE", "8"},
                                               {"MASTER_ADDR", "gpu1"}, {"MASTER_PORT", "29500"}};
  auto launch = detect(variables);
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->source, "torchrun");
  EXPECT_EQ(launch->address, "unix:@penstock-RANK-29500-");
  variables["TORCHELASTIC_RESTART_COUNT"] = "2";
  EXPECT_EQ(detect(variables)->address, "unix:@penstock-RANK-29500-2");
  variables["LOCAL_WORLD_SIZE"] = "4";
  variables["LOCAL_RANK"] = "1";
  launch = detect(variables);
  EXPECT_EQ(launch->local_rank, 1);
  EXPECT_EQ(launch->address, "gpu1:29501");
  variables["PENSTOCK_ADDRESS"] = "gpu1:7";
  EXPECT_EQ(detect(variables)->address, "gpu1:7");
}

TEST(DetectLaunch, ReadsMpirun) {
  std::map<std::string, std::string> variables{{"OMPI_COMM_WORLD_RANK", "1"},
                                               {"OMPI_COMM_WORLD_SIZE", "2"},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                               {"PMIX_NAMESPACE", "144"}};
  const auto launch = detect(variables);
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->source, "Open MPI");
  EXPECT_EQ(launch->rank, 1);
  EXPECT_EQ(launch->address, "unix:@penstock-OMPI_COMM_WORLD_RANK-144-");
  variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  EXPECT_EQ(detect(variables)->address, "");
}

TEST(DetectLaunch, ReadsPmiAndSlurmSteps) {
  const auto pmi = detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}});
  ASSERT_TRUE(pmi);
  EXPECT_EQ(pmi->source, "PMI");
  EXPECT_EQ(pmi->address, "");
  std::map<std::string, std::string> slurm{
      {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "3"}, {"SLURM_JOB_ID", "9"}};
  EXPECT_FALSE(detect(slurm)) << "a batch script is no rank";
  slurm["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(detect(slurm)->address, "");
  slurm["SLURM_STEP_NUM_NODES"] = "1";
  const auto launch = detect(slurm);
  EXPECT_EQ(launch->rank, 3);
  EXPECT_EQ(launch->address, "unix:@penstock-SLURM_PROCID-9-0");
}

TEST(DetectLaunch, NamesAVariableThatMakesNoSense) {
  expect_refusal({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK is \"x\"");
  expect_refusal({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK is \"-1\"");
  expect_refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK is 2, must be below WORLD_SIZE = 2");
  expect_refusal({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, "WORLD_SIZE");
}

TEST(JoinLaunch, NeedsAnAddressForMoreThanOneRank) {
  try {
    (void)join_launch({.rank = 0, .size = 2, .address = {}, .source = "PMI"});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("PENSTOCK_ADDRESS"));
  }
  EXPECT_EQ(join_launch({.address = {}, .source = "PMI"})->size(), 1);
}

}  // namespace
}  // namespace penstock
