#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator_contract.hpp"
#include "penstock/core/parallel.hpp"
#include "support/process_state.hpp"
#include "support/sanitizers.hpp"

namespace penstock {
namespace {

void run_threads(int size, const CommOptions& options, const contract::RankBody& body) {
  auto members = make_thread_group(size, options);
  std::vector<std::jthread> threads;
  for (auto& member : members) {
    threads.emplace_back([&body, comm = std::move(member)]() mutable { body(std::move(comm)); });
  }
}

contract::Backend threads(int size) {
  return {.name = "threads" + std::to_string(size), .size = size, .run = run_threads};
}

TEST(ThreadGroup, RefusesFewerThanOneRank) {
  EXPECT_THROW(make_thread_group(0), Error);
  EXPECT_THROW(make_thread_group(-3), Error);
}

TEST(ThreadGroup, LetsNobodyPastABarrierBeforeAllHaveCome) {
  std::atomic<int> arrived{0};
  run_thread_group(8, [&](Communicator& comm) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      comm.barrier();
      EXPECT_GE(arrived.load(), 8 * round);
      comm.barrier();
    }
  });
}

TEST(ThreadGroup, NamesARankByItsPlaceInTheWholeGroupToo) {
  run_thread_group(4, [](Communicator& comm) {
    const auto part = comm.split(comm.rank() / 2, 0);
    if (comm.rank() < 2) return;
    if (comm.rank() == 3) return part->abort("no more paper");
    EXPECT_THAT(contract::error_of(ErrorCode::PeerFailed, [&] { part->barrier(); }),
                testing::HasSubstr("rank 1 (3 in the whole group) failed: no more paper"));
  });
}

// Rank 2 leaves the pair that it shares with rank 1, who therefore leaves the one with rank 0.
TEST(ThreadGroup, NamesTheFirstCauseThroughARankThatLeavesAfterIt) {
  auto members = make_thread_group(3);
  std::string heard;
  std::vector<std::jthread> threads;
  for (auto& member : members) {
    threads.emplace_back([&heard, world = std::move(member)] {
      const int rank = world->rank();
      const auto low = world->split(rank < 2 ? 0 : -1, rank);
      const auto high = world->split(rank > 0 ? 0 : -1, rank);
      if (rank == 2) return;
      try {
        (rank == 1 ? high : low)->barrier();
      } catch (const Error& error) {
        if (rank == 0) heard = error.what();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(heard,
            "barrier: rank 2 of the whole group failed: left the group; so rank 1 left the group");
}

TEST(RunThreadGroup, RethrowsTheFirstCauseAndNotItsEchoes) {
  for (const int culprit : {0, 2, 3}) {
    try {
      run_thread_group(4, [&](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == culprit) throw std::runtime_error("row 7 is missing");
        comm.barrier();
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "row 7 is missing");
    }
  }
}

TEST(RunThreadGroup, DoesNotWaitForARankThatCannotBeStarted) {
  if (!test::kSanitizers.empty()) {
    GTEST_SKIP() << "a sanitizer does not live under a limit of address space";
  }
  constexpr int kRanks = 256;  // with a stack of megabytes each
  std::atomic<int> num_told = 0;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit tight{test::address_space_bytes() + (rlim_t{192} << 20U), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  std::string message;
  try {
    run_thread_group(kRanks, [&](Communicator& comm) {
      try {
        comm.barrier();
      } catch (const Error& error) {
        if (std::string_view(error.what()).find("cannot start rank") != std::string_view::npos) {
          ++num_told;
        }
        throw;
      }
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::System);
    message = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_THAT(message, testing::StartsWith("run_thread_group: cannot start rank "));
  EXPECT_GT(num_told, 0);  // and not at the deadline
}

TEST(RunThreadGroup, DividesTheProcessorsAmongTheRanks) {
  set_parallel_threads(6);
  run_thread_group(3, [](Communicator&) { EXPECT_EQ(parallel_threads(), 2); });
  run_thread_group(8, [](Communicator&) { EXPECT_EQ(parallel_threads(), 1); });
  EXPECT_EQ(parallel_threads(), 6);
}

TEST(SoloCommunicator, CopiesWhatItIsGiven) {
  const auto comm = make_solo_communicator();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  contract::expect_usable(*comm);
}

}  // namespace

namespace contract {
INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorContract,
                         testing::Values(threads(1), threads(2), threads(3), threads(5),
                                         threads(8)),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorPeersContract,
                         testing::Values(threads(2), threads(3), threads(5), threads(8)),
                         backend_name);
}  // namespace contract
}  // namespace penstock
