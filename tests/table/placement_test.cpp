#include "penstock/table/placement.hpp"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(Placement, WordsAreInvertible) {
  for (const auto* word : {"auto", "device", "peer", "host", "host_shared", "file"}) {
    const auto placement = parse_placement(word);
    ASSERT_TRUE(placement.has_value()) << word;
    EXPECT_EQ(to_string(*placement), word);
  }
}

TEST(Placement, GivesNothingForAnotherWord) {
  for (const auto* word : {"", "Host", "host-shared", "host ", "cpu"}) {
    EXPECT_EQ(parse_placement(word), std::nullopt) << word;
  }
}

}  // namespace
}  // namespace penstock
