#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "cli/run_penstock.hpp"

namespace penstock {
namespace {

using test::run_penstock;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(BenchGateCommand, PrintsThePlannersTableForRanksThatAreNotHere) {
  const auto result = run_penstock(
      "bench gate --device cuda --ranks 2 --plan --plan-ranks 4,8 --shape 2816x8192 --tokens 1024");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("typical of cuda: link 384.0 GB/s"));
  EXPECT_THAT(result.out, HasSubstr("hidden 2816 output 8192 ranks 4 tokens 1024\n"));
  EXPECT_THAT(result.out, HasSubstr("hidden 2816 output 8192 ranks 8 tokens 1024\n"));
  // Seven eighths of 44 MiB.
  EXPECT_THAT(result.out, HasSubstr("38.50"));
  // k_shard on 8 GPUs: two sets of buffers for blocks of 192 tokens.
  EXPECT_THAT(result.out, HasSubstr("54.09"));
}

TEST(BenchGateCommand, PlansFromMeasuredRates) {
  const auto result =
      run_penstock("bench gate --ranks 2 --plan --measure --plan-ranks 4 --shape 64x96 --tokens 8");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("measured over 2 ranks: link "));
  EXPECT_THAT(result.out, HasSubstr("ranks 4"));
}

TEST(BenchGateCommand, RefusesOptionsOfThePlanWithoutIt) {
  for (const std::string option : {"--measure", "--plan-ranks 4"}) {
    const auto result = run_penstock("bench gate " + option);
    EXPECT_EQ(result.exit_code, 3) << option;
    EXPECT_THAT(result.out, IsEmpty());
    EXPECT_THAT(test::last_line(result.err), HasSubstr("need --plan"));
  }
}

TEST(BenchGateCommand, RefusesCasesThatAreNoneBeforeItPrintsOrMeasures) {
  const std::pair<std::string, std::string> kBad[] = {
      {"--tokens 8,0", "--tokens is 0, needs at least 1"},
      {"--plan --tokens 8,-1", "--tokens is -1, needs at least 0"},
      {"--ranks -1", "--ranks is -1, needs at least 1"},
      {"--plan --plan-ranks 2,0", "--plan-ranks is 0, needs at least 1"},
      {"--plan --measure --shape 64x96,64", "shape is 64, needs"},
      {"--plan --tokens 9223372036854775807", "more bytes than 64 bits count"},
      {"--plan --plan-ranks 2,2147483647", "more bytes than 64 bits count"}};
  for (const auto& [options, message] : kBad) {
    const auto result = run_penstock("bench gate " + options);
    EXPECT_EQ(result.exit_code, 3) << options;
    EXPECT_THAT(result.out, IsEmpty()) << options;
    EXPECT_THAT(test::last_line(result.err), HasSubstr(message));
  }
}

}  // namespace
}  // namespace penstock
