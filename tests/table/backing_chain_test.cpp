#include "table/sharing/backing_chain.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "penstock/table/host_backing.hpp"
#include "table/sharing/fd_handover.hpp"

namespace penstock::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kCuMem = HostBacking::CuMem;
constexpr auto kHugetlb = HostBacking::Hugetlb;
constexpr auto kMemfd = HostBacking::Memfd;

constexpr std::int64_t kGib = std::int64_t{1} << 30;

std::vector<HostBacking> that_can_be_had(const BackingFacts& facts) {
  std::vector<HostBacking> result;
  for (const auto& candidate : backing_candidates(facts)) {
    if (candidate.refusal.empty()) result.push_back(candidate.backing);
  }
  return result;
}

TEST(HostBacking, WordsAreInvertible) {
  for (const auto* word : {"auto", "cumem", "hugetlb", "memfd"}) {
    const auto backing = parse_host_backing(word);
    ASSERT_TRUE(backing.has_value()) << word;
    EXPECT_EQ(to_string(*backing), word);
  }
  for (const auto* word : {"", "Memfd", "shm", "cumem ", "huge"}) {
    EXPECT_EQ(parse_host_backing(word), std::nullopt) << word;
  }
}

TEST(BackingCandidates, AreWhatTheMachineHas) {
  BackingFacts facts{.table_bytes = kGib,
                     .is_read_by_gpu = true,
                     .cumem_refusal = "",
                     .free_huge_page_bytes = kGib};
  EXPECT_THAT(that_can_be_had(facts), ElementsAre(kCuMem, kHugetlb, kMemfd));
  facts.free_huge_page_bytes = kGib - 1;  // the whole table or none of it
  EXPECT_THAT(that_can_be_had(facts), ElementsAre(kCuMem, kMemfd));
  facts.cumem_refusal = "an old driver";
  EXPECT_THAT(that_can_be_had(facts), ElementsAre(kMemfd));
  EXPECT_EQ(backing_candidates(facts)[0].refusal, "an old driver");
  EXPECT_THAT(backing_candidates(facts)[1].refusal, HasSubstr("1023 MiB of huge pages are free"));
}

TEST(BackingCandidates, OnTheCpuHaveNoCuMem) {
  EXPECT_THAT(that_can_be_had({.table_bytes = kGib, .free_huge_page_bytes = 2 * kGib}),
              ElementsAre(kHugetlb, kMemfd));
  EXPECT_THAT(that_can_be_had({.table_bytes = kGib}), ElementsAre(kMemfd));
}

TEST(OrderBackings, TakesTheSoonestWhereReadsAreEqual) {
  // As measured on H200: docs/measurements.
  EXPECT_THAT(order_backings(std::vector<BackingFigures>{
                  {kCuMem, 0.30, 50e6}, {kHugetlb, 0.04, 49e6}, {kMemfd, 0.25, 50.5e6}}),
              ElementsAre(kHugetlb, kMemfd, kCuMem));
}

TEST(OrderBackings, TakesTheFastestReadsWhereTheyAreClearlyFaster) {
  EXPECT_THAT(
      order_backings(std::vector<BackingFigures>{{kCuMem, 0.30, 55.1e6}, {kMemfd, 0.04, 50e6}}),
      ElementsAre(kCuMem, kMemfd));
  EXPECT_THAT(
      order_backings(std::vector<BackingFigures>{{kCuMem, 0.30, 54.9e6}, {kMemfd, 0.04, 50e6}}),
      ElementsAre(kMemfd, kCuMem));
}

TEST(OrderBackings, JudgesEachRankByTheFastestThatIsLeft) {
  // hugetlb is 10 % behind memfd, which is 20 % behind cuMem.
  EXPECT_THAT(order_backings(std::vector<BackingFigures>{
                  {kCuMem, 0.30, 60e6}, {kHugetlb, 0.04, 46e6}, {kMemfd, 0.25, 50e6}}),
              ElementsAre(kCuMem, kHugetlb, kMemfd));
}

TEST(OrderBackings, LeavesEqualsInTheirOrder) {
  EXPECT_THAT(order_backings(std::vector<BackingFigures>{
                  {kCuMem, 0.25, 50e6}, {kHugetlb, 0.25, 50e6}, {kMemfd, 0.25, 50e6}}),
              ElementsAre(kCuMem, kHugetlb, kMemfd));
}

TEST(OrderBackings, NeedsNoReads) {
  EXPECT_THAT(order_backings(std::vector<BackingFigures>{{kHugetlb, 0.3, 0}, {kMemfd, 0.2, 0}}),
              ElementsAre(kMemfd, kHugetlb));
  EXPECT_THAT(order_backings(std::vector<BackingFigures>{}), ElementsAre());
}

TEST(OrderBackings, SaysWhatWasMeasured) {
  EXPECT_EQ(describe({kMemfd, 0.2518, 48.13e6}), "memfd 0.25 s/GiB, 48.1 M rows/s");
  EXPECT_EQ(describe({kHugetlb, 0.04, 0}), "hugetlb 0.04 s/GiB");
}

TEST(PieceBytes, KeepTheDescriptorsWithinOneMessage) {
  constexpr std::size_t kTwoGib = std::size_t{2} << 30;
  EXPECT_EQ(piece_bytes(1), kTwoGib);
  EXPECT_EQ(piece_bytes(std::size_t{95} << 30), kTwoGib);
  EXPECT_EQ(piece_bytes(kMaxFdsOfMessage * kTwoGib), kTwoGib);
  EXPECT_EQ(piece_bytes(kMaxFdsOfMessage * kTwoGib + 1), 2 * kTwoGib);
  for (const std::size_t tib : {1U, 2U, 5U, 100U}) {
    const std::size_t total = tib << 40U;
    EXPECT_LE((total - 1) / piece_bytes(total) + 1, kMaxFdsOfMessage);
  }
}

}  // namespace
}  // namespace penstock::detail
