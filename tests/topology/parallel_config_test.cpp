#include "penstock/topology/parallel_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

constexpr ParallelConfig kUnevenGrid{.external_dp = 2, .dp = 3, .pp = 2, .pcp = 4, .tp = 5};

TEST(PlaceOf, CountsTpFastest) {
  int rank = 0;
  for (int e = 0; e < 2; ++e) {
    for (int d = 0; d < 3; ++d) {
      for (int p = 0; p < 2; ++p) {
        for (int c = 0; c < 4; ++c) {
          for (int t = 0; t < 5; ++t) {
            const RankPlace place{.external_dp = e, .dp = d, .pp = p, .pcp = c, .tp = t};
            EXPECT_EQ(place_of(kUnevenGrid, rank), place);
            EXPECT_EQ(rank_at(kUnevenGrid, place), rank);
            ++rank;
          }
        }
      }
    }
  }
  EXPECT_EQ(rank, kUnevenGrid.world_size());
}

TEST(PlaceOf, RefusesRanksOutsideTheGrid) {
  EXPECT_THROW(place_of(kUnevenGrid, -1), Error);
  EXPECT_THROW(place_of(kUnevenGrid, kUnevenGrid.world_size()), Error);
  EXPECT_THROW(rank_at(kUnevenGrid, {.dp = 3}), Error);
  EXPECT_THROW(rank_at(kUnevenGrid, {.tp = -1}), Error);
}

TEST(ValidateParallelConfig, NamesTheSizeThatIsWrong) {
  const auto message_of = [](const ParallelConfig& config) {
    try {
      validate(config);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_THAT(message_of({.external_dp = 0}), testing::HasSubstr("external_dp is 0"));
  EXPECT_THAT(message_of({.dp = -1}), testing::HasSubstr("dp is -1"));
  EXPECT_THAT(message_of({.pp = 0}), testing::HasSubstr("pp is 0"));
  EXPECT_THAT(message_of({.pcp = 0}), testing::HasSubstr("pcp is 0"));
  EXPECT_THAT(message_of({.tp = 0}), testing::HasSubstr("tp is 0"));
}

TEST(ValidateParallelConfig, RefusesProductsThatCouldOverflow) {
  EXPECT_THROW(validate({.dp = 1 << 30, .pp = 1 << 30, .tp = 1 << 30}), Error);
  EXPECT_THROW(validate({.dp = (1 << 20) + 1}), Error);
  EXPECT_NO_THROW(validate({.dp = 1 << 20}));
}

}  // namespace
}  // namespace penstock
