#include "penstock/comm/nodes.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

TEST(FindNodes, PutsTheThreadsOfAProcessOnOneNode) {
  for (const int size : {1, 2, 8}) {
    run_thread_group(size, [&](Communicator& comm) {
      const NodeMap map = find_nodes(comm);
      EXPECT_EQ(map.node_of_rank, std::vector<int>(static_cast<std::size_t>(size), 0));
      EXPECT_EQ(map.contradiction, "");
    });
  }
}

TEST(FindNodes, LeavesNoDescriptorBehind) {
  const auto count_descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  const int before = count_descriptors();
  run_thread_group(4, [](Communicator& comm) { find_nodes(comm); });
  EXPECT_EQ(count_descriptors(), before);
}

/// Moves the calling thread into a network namespace of its own.
bool leave_network() {
  return ::unshare(CLONE_NEWNET) == 0;
}

/// Moves the calling thread into the network namespace of thread `tid` of this process.
bool join_network_of(int tid) {
  const std::string path = "/proc/self/task/" + std::to_string(tid) + "/ns/net";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool is_joined = ::setns(fd, CLONE_NEWNET) == 0;
  ::close(fd);
  return is_joined;
}

TEST(FindNodes, SeparatesNetworkNamespaces) {
  std::atomic<bool> may_unshare{true};
  std::atomic<bool> may_join{true};
  std::atomic<int> tid_of_rank_2{0};
  run_thread_group(4, [&](Communicator& comm) {
    if (comm.rank() == 2) {
      may_unshare = leave_network();
      tid_of_rank_2 = ::gettid();
    }
    comm.barrier();
    if (!may_unshare) return;
    if (comm.rank() == 3) may_join = join_network_of(tid_of_rank_2);
    comm.barrier();
    if (!may_join) return;
    EXPECT_EQ(find_nodes(comm).node_of_rank, (std::vector<int>{0, 0, 1, 1}));
  });
  if (!may_unshare || !may_join)
    GTEST_SKIP() << "no right to make a network namespace (needs CAP_SYS_ADMIN)";
}

TEST(FindNodes, TakesAProbeOfTheCaller) {
  run_thread_group(4, [](Communicator& comm) {
    const NodeMap map = find_nodes(comm, [](Communicator& c) {
      std::vector<bool> reach;
      for (int r = 0; r < c.size(); ++r) reach.push_back(r % 2 == c.rank() % 2);
      return reach;
    });
    EXPECT_EQ(map.node_of_rank, (std::vector<int>{0, 1, 0, 1}));
  });
}

TEST(FindNodes, GivesAllRanksTheSameNodesWhenProbesContradictEachOther) {
  run_thread_group(3, [](Communicator& comm) {
    // A chain: 0 and 2 do not reach each other.
    const NodeMap map = find_nodes(comm, [](Communicator& c) {
      return std::vector<bool>{c.rank() != 2, true, c.rank() != 0};
    });
    EXPECT_EQ(map.node_of_rank, (std::vector<int>{0, 0, 1}));
    EXPECT_NE(map.contradiction, "");
  });
}

TEST(FindNodes, RefusesAProbeThatForgetsRanksOnEveryRank) {
  run_thread_group(3, [](Communicator& comm) {
    try {
      find_nodes(comm, [](Communicator& c) { return std::vector<bool>(c.rank() == 1 ? 2 : 3); });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr("the probe of rank 1"));
    }
  });
}

}  // namespace
}  // namespace penstock
