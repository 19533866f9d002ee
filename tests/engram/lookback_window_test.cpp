#include "penstock/engram/lookback_window.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using testing::ElementsAre;

std::vector<std::int32_t> read(const LookbackWindow& window, int depth) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(depth), -7);
  window.read(out);
  return out;
}

std::vector<std::int32_t> newest(const std::vector<std::int32_t>& tokens, int depth) {
  std::vector<std::int32_t> out(
      tokens.rbegin(), tokens.rbegin() + std::min<std::ptrdiff_t>(depth, std::ssize(tokens)));
  out.resize(static_cast<std::size_t>(depth), -1);
  return out;
}

TEST(LookbackWindow, ReadsNewestFirstAndMinusOneBeforeTheStart) {
  LookbackWindow window(3);
  EXPECT_THAT(read(window, 3), ElementsAre(-1, -1, -1));
  window.append(std::vector<std::int32_t>{10, 11});
  EXPECT_THAT(read(window, 3), ElementsAre(11, 10, -1));
  window.append(std::vector<std::int32_t>{12, 13});
  EXPECT_THAT(read(window, 3), ElementsAre(13, 12, 11));
  EXPECT_EQ(window.position(), 4);
}

TEST(LookbackWindow, AgreesWithAPlainVectorUnderRandomUse) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const int depth = 1 + static_cast<int>(random() % 5);
    const int max_rollback = static_cast<int>(random() % 9);
    LookbackWindow window(depth, max_rollback);
    std::vector<std::int32_t> tokens;
    std::ptrdiff_t furthest = 0;
    for (int step = 0; step < 60; ++step) {
      const auto kind = random() % 10;
      if (kind < 5) {
        std::vector<std::int32_t> more(random() % (kind == 0 ? 40 : 6));
        for (auto& token : more) token = static_cast<std::int32_t>(random() % 1000);
        window.append(more);
        tokens.insert(tokens.end(), more.begin(), more.end());
        furthest = std::max(furthest, std::ssize(tokens));
      } else if (kind < 8) {
        const int count = static_cast<int>(random() % 10);
        const std::ptrdiff_t target = std::ssize(tokens) - count;
        if (target < 0 || furthest - target > max_rollback) {
          EXPECT_THROW(window.rollback(count), Error);
        } else {
          window.rollback(count);
          tokens.resize(static_cast<std::size_t>(target));
        }
      } else if (kind == 8) {
        LookbackWindow branch = window.fork();
        branch.append(std::vector<std::int32_t>{5, 6, 7});
        EXPECT_EQ(branch.position(), window.position() + 3);
      } else if (step % 7 == 0) {
        window.reset();
        tokens.clear();
        furthest = 0;
      }
      ASSERT_EQ(window.position(), std::ssize(tokens));
      ASSERT_EQ(read(window, depth), newest(tokens, depth));
    }
  }
}

TEST(LookbackWindow, ForksDoNotSeeEachOther) {
  LookbackWindow window(2, 1);
  window.append(std::vector<std::int32_t>{1, 2, 3});
  LookbackWindow beam = window.fork();
  beam.append(std::vector<std::int32_t>{4});
  window.append(std::vector<std::int32_t>{5});
  EXPECT_THAT(read(beam, 2), ElementsAre(4, 3));
  EXPECT_THAT(read(window, 2), ElementsAre(5, 3));
}

TEST(LookbackWindow, RefusesToGoBackFurtherThanItRemembers) {
  LookbackWindow window(2, 3);
  window.append(std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  window.rollback(2);
  EXPECT_THROW(window.rollback(2), Error);
  window.rollback(1);
  EXPECT_THROW(window.rollback(1), Error);
  EXPECT_THAT(read(window, 2), ElementsAre(3, 2));
  EXPECT_THROW(window.rollback(-1), Error);
}

TEST(LookbackWindow, RefusesAbsurdSizes) {
  EXPECT_THROW(LookbackWindow(0), Error);
  EXPECT_THROW(LookbackWindow(3, -1), Error);
  const LookbackWindow window(3);
  std::vector<std::int32_t> out(2);
  EXPECT_THROW(window.read(out), Error);
}

}  // namespace
}  // namespace penstock
