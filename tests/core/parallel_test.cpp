#include "penstock/core/parallel.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "support/process_state.hpp"
#include "support/sanitizers.hpp"

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

/// In a process of its own, whose pool has not been started.
[[noreturn]] void sum_without_threads() {
  const rlim_t used = test::address_space_bytes();
  const rlimit tight{used + (rlim_t{4} << 20U), RLIM_INFINITY};  // less than the stack of a thread
  ::setrlimit(RLIMIT_AS, &tight);
  set_parallel_threads(4);
  std::atomic<std::int64_t> sum{0};
  for (int round = 0; round < 3; ++round) {
    parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  }
  ::_exit(sum == 300 ? 0 : 1);
}

TEST(ParallelForDeathTest, DoesWithoutThreadsThatCannotBeStarted) {
  if (!test::kSanitizers.empty()) {
    GTEST_SKIP() << "a sanitizer does not live under a limit of address space";
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(sum_without_threads(), testing::ExitedWithCode(0), "");
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
