#include "penstock/gate/token_layout.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "gate/gate_ranks.hpp"

namespace penstock {
namespace {

TEST(PcpLayout, CutsAsTheModelsDo) {
  const PcpLayout nine(9, 8);
  EXPECT_EQ(nine.counts(), (std::vector<std::int64_t>{1, 1, 1, 1, 1, 1, 1, 2}));
  const PcpLayout one(1, 4);
  EXPECT_EQ(one.counts(), (std::vector<std::int64_t>{1, 0, 0, 0}));
  const PcpLayout sixteen(16, 2);
  EXPECT_EQ(sixteen.positions_of(0), (std::vector<std::int64_t>{0, 1, 2, 3, 12, 13, 14, 15}));
  EXPECT_EQ(sixteen.positions_of(1), (std::vector<std::int64_t>{4, 5, 6, 7, 8, 9, 10, 11}));
}

TEST(PcpLayout, EveryTokenHasOnePlaceAndThePlaceIsTheInverse) {
  std::mt19937 generator(3);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t tokens = std::uniform_int_distribution<std::int64_t>(0, 200)(generator);
    const int ranks = std::uniform_int_distribution<int>(1, 9)(generator);
    const PcpLayout layout(tokens, ranks);
    std::vector<int> seen(static_cast<std::size_t>(tokens), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto positions = layout.positions_of(rank);
      EXPECT_EQ(static_cast<std::int64_t>(positions.size()),
                layout.counts()[static_cast<std::size_t>(rank)]);
      for (std::size_t row = 0; row < positions.size(); ++row) {
        ++seen[static_cast<std::size_t>(positions[row])];
        EXPECT_EQ(layout.place_of(positions[row]),
                  (PcpLayout::Place{rank, static_cast<std::int64_t>(row)}));
      }
    }
    for (const int count : seen) EXPECT_EQ(count, 1);
  }
}

TEST(PcpLayout, BalancesWithinOneChunk) {
  for (const std::int64_t tokens : {64, 1000, 4097}) {
    const auto counts = PcpLayout(tokens, 8).counts();
    const std::int64_t chunk = (tokens + 15) / 16;
    for (const std::int64_t count : counts) EXPECT_LE(count, 2 * chunk);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), tokens);
  }
}

TEST(PcpLayout, RefusesWhatIsOutside) {
  EXPECT_EQ(error_of([] { PcpLayout(-1, 2); }).first, ErrorCode::InvalidArgument);
  EXPECT_EQ(error_of([] { PcpLayout(1, 0); }).first, ErrorCode::InvalidArgument);
  const PcpLayout layout(5, 2);
  EXPECT_EQ(error_of([&] { layout.place_of(5); }).first, ErrorCode::InvalidArgument);
  EXPECT_EQ(error_of([&] { static_cast<void>(layout.chunks_of(2)); }).first,
            ErrorCode::InvalidArgument);
}

TEST(EvenShare, CoversEverythingOnce) {
  for (const std::int64_t count : {0, 1, 7, 64, 8200}) {
    for (const int ranks : {1, 2, 3, 8}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const IndexRange share = even_share(count, ranks, rank);
        EXPECT_EQ(share.begin, next);
        EXPECT_LE(share.size(), (count + ranks - 1) / ranks);
        next = share.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(GateNames, AreInvertible) {
  for (const auto strategy :
       {GateStrategy::Auto, GateStrategy::Replicated, GateStrategy::KShard, GateStrategy::NShard,
        GateStrategy::WeightGather, GateStrategy::IdenticalRows}) {
    EXPECT_EQ(parse_gate_strategy(to_string(strategy)), strategy);
  }
  EXPECT_EQ(parse_gate_strategy("kshard"), std::nullopt);
  for (const auto part : {WeightPart::Full, WeightPart::Rows, WeightPart::Columns}) {
    EXPECT_EQ(parse_weight_part(to_string(part)), part);
  }
  EXPECT_EQ(parse_gating_type("headwise"), GatingType::Headwise);
  EXPECT_EQ(parse_gating_type("tokenwise"), std::nullopt);
}

}  // namespace
}  // namespace penstock
