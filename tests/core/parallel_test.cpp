#include "penstock/core/parallel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace penstock {
namespace {

TEST(ParallelFor, VisitsEveryItemOnce) {
  for (const std::int64_t count : {0, 1, 7, 64, 1000}) {
    for (const std::int64_t grain : {1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(count));
      parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
      });
      for (const auto& n : visits) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ParallelFor, RunsInPlaceInsideABody) {
  std::atomic<int> items{0};
  parallel_for(8, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      parallel_for(10, 1,
                   [&](std::int64_t b, std::int64_t e) { items += static_cast<int>(e - b); });
    }
  });
  EXPECT_EQ(items, 80);
}

TEST(ParallelFor, PassesOnAnExceptionAfterAllBodiesEnded) {
  EXPECT_THROW(parallel_for(100, 1,
                            [](std::int64_t begin, std::int64_t) {
                              if (begin == 0) throw std::runtime_error("first");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace penstock
