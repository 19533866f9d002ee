#include "penstock/table/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "table/placements/placement_order.hpp"

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

using detail::placements_to_try;
using testing::ElementsAre;

TEST(PlacementsToTry, OnAGpuBeginWithItsMemoryUnlessABackingIsNamed) {
  TableOptions options{.placement = Placement::Auto, .device = Device::cuda(0)};
  EXPECT_THAT(placements_to_try(options).order,
              ElementsAre(Placement::Device, Placement::HostShared));
  EXPECT_EQ(placements_to_try(options).num_asked_for, 2U);
  for (const HostBacking named : {HostBacking::CuMem, HostBacking::Hugetlb, HostBacking::Memfd}) {
    options.backing = named;
    for (const bool may_fall_back : {false, true}) {
      options.may_fall_back = may_fall_back;
      EXPECT_THAT(placements_to_try(options).order, ElementsAre(Placement::HostShared));
    }
  }
}

TEST(PlacementsToTry, GoOnOnlyWhereThatIsAllowed) {
  TableOptions options{.placement = Placement::Peer, .device = Device::cuda(0)};
  EXPECT_THAT(placements_to_try(options).order, ElementsAre(Placement::Peer));
  options.may_fall_back = true;
  EXPECT_THAT(placements_to_try(options).order,
              ElementsAre(Placement::Peer, Placement::HostShared));
  EXPECT_EQ(placements_to_try(options).num_asked_for, 1U);
  options = {.placement = Placement::Auto, .device = Device::cpu(), .may_fall_back = true};
  EXPECT_THAT(placements_to_try(options).order,
              ElementsAre(Placement::HostShared, Placement::File));
}

}  // namespace
}  // namespace penstock
