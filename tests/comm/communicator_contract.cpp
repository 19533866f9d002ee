// The suite that every engine has to pass. Instantiated by the tests of each engine.

#include "comm/communicator_contract.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace penstock::contract {
namespace {

TEST_P(CommunicatorContract, TellsRankSizeAndEngine) {
  on_every_rank([&](Communicator& comm) {
    EXPECT_EQ(comm.size(), GetParam().size);
    EXPECT_GE(comm.rank(), 0);
    EXPECT_LT(comm.rank(), comm.size());
    EXPECT_FALSE(comm.engine().empty());
  });
}

TEST_P(CommunicatorContract, GathersBlocksInRankOrder) {
  on_every_rank([](Communicator& comm) {
    for (const std::size_t count : {0U, 1U, 7U, 64U, 4097U}) {
      Bytes out(count * to_size(comm.size()), std::byte{0xEE});
      comm.all_gather(pattern(comm.rank(), 0, count), out);
      Bytes expected;
      for (int r = 0; r < comm.size(); ++r) append(expected, pattern(r, 0, count));
      EXPECT_EQ(out, expected);
    }
  });
}

TEST_P(CommunicatorContract, GathersInPlace) {
  on_every_rank([](Communicator& comm) {
    constexpr std::size_t kCount = 100;
    Bytes out(kCount * to_size(comm.size()));
    const auto mine = std::span(out).subspan(to_size(comm.rank()) * kCount, kCount);
    const Bytes block = pattern(comm.rank(), 0, kCount);
    std::copy(block.begin(), block.end(), mine.begin());
    comm.all_gather(mine, out);
    Bytes expected;
    for (int r = 0; r < comm.size(); ++r) append(expected, pattern(r, 0, kCount));
    EXPECT_EQ(out, expected);
  });
}

TEST_P(CommunicatorContract, SendsEqualBlocksToTheirRanks) {
  on_every_rank([](Communicator& comm) {
    for (const std::size_t count : {0U, 1U, 33U, 2048U}) {
      Bytes in;
      Bytes expected;
      for (int r = 0; r < comm.size(); ++r) append(in, pattern(comm.rank(), r, count));
      for (int r = 0; r < comm.size(); ++r) append(expected, pattern(r, comm.rank(), count));
      Bytes out(in.size(), std::byte{0xEE});
      comm.all_to_all(in, out, count);
      EXPECT_EQ(out, expected);
    }
  });
}

/// One all_to_all_v with `sizes[from][to]`, checked by this rank.
void check_all_to_all_v(Communicator& comm, const std::vector<std::vector<std::int64_t>>& sizes) {
  const auto me = to_size(comm.rank());
  Bytes in;
  Bytes expected;
  std::vector<std::int64_t> out_bytes;
  for (int r = 0; r < comm.size(); ++r) {
    append(in, pattern(comm.rank(), r, to_size(sizes[me][to_size(r)])));
    append(expected, pattern(r, comm.rank(), to_size(sizes[to_size(r)][me])));
    out_bytes.push_back(sizes[to_size(r)][me]);
  }
  Bytes out(expected.size(), std::byte{0xEE});
  comm.all_to_all_v(in, sizes[me], out, out_bytes);
  EXPECT_EQ(out, expected);
}

TEST_P(CommunicatorContract, SendsUnequalBlocksWithAnyPatternOfZeros) {
  on_every_rank([](Communicator& comm) {
    std::mt19937 random(7);  // the same on every rank
    for (int round = 0; round < 40; ++round) {
      std::vector<std::vector<std::int64_t>> sizes(to_size(comm.size()));
      for (auto& row : sizes) {
        for (int r = 0; r < comm.size(); ++r) {
          row.push_back(random() % 2 == 0 ? 0 : static_cast<std::int64_t>(random() % 300));
        }
      }
      check_all_to_all_v(comm, sizes);
    }
  });
}

TEST_P(CommunicatorContract, LetsOneRankSendEverything) {
  on_every_rank([](Communicator& comm) {
    for (int sender = 0; sender < comm.size(); ++sender) {
      std::vector<std::vector<std::int64_t>> sizes(
          to_size(comm.size()), std::vector<std::int64_t>(to_size(comm.size()), 0));
      for (auto& count : sizes[to_size(sender)]) count = 70'000;
      check_all_to_all_v(comm, sizes);
    }
  });
}

TEST_P(CommunicatorContract, SumsFloatBlocksInRankOrder) {
  on_every_rank([](Communicator& comm) {
    for (const int count : {0, 1, 5, 129}) {
      const auto element = [&](int rank, int block, int i) {
        return 1.0F / static_cast<float>(1 + rank * 3 + block * 5 + i) * (i % 2 == 0 ? 1e4F : 1.0F);
      };
      std::vector<float> in;
      std::vector<float> expected;
      for (int b = 0; b < comm.size(); ++b) {
        for (int i = 0; i < count; ++i) in.push_back(element(comm.rank(), b, i));
      }
      for (int i = 0; i < count; ++i) {
        float sum = element(0, comm.rank(), i);
        for (int r = 1; r < comm.size(); ++r) sum += element(r, comm.rank(), i);
        expected.push_back(sum);
      }
      Bytes out(expected.size() * sizeof(float));
      comm.reduce_scatter(bytes_of(in), out, DType::F32);
      EXPECT_EQ(values_of<float>(out), expected);
    }
  });
}

TEST_P(CommunicatorContract, SumsBf16BlocksInFloatAndRoundsOnce) {
  on_every_rank([](Communicator& comm) {
    constexpr int kCount = 37;
    // 1 + 2^-9 patterns: rounding after each addition would lose them.
    const auto element = [](int rank, int i) {
      return to_bf16(rank == 0 ? 1.0F : 0.001953125F * static_cast<float>(1 + i % 3));
    };
    std::vector<BF16> in;
    std::vector<BF16> expected;
    for (int b = 0; b < comm.size(); ++b) {
      for (int i = 0; i < kCount; ++i) in.push_back(element(comm.rank(), i + b));
    }
    for (int i = 0; i < kCount; ++i) {
      float sum = to_float(element(0, i + comm.rank()));
      for (int r = 1; r < comm.size(); ++r) sum += to_float(element(r, i + comm.rank()));
      expected.push_back(to_bf16(sum));
    }
    Bytes out(kCount * sizeof(BF16));
    comm.reduce_scatter(bytes_of(in), out, DType::BF16);
    EXPECT_EQ(values_of<BF16>(out), expected);
  });
}

TEST_P(CommunicatorContract, BroadcastsFromEveryRoot) {
  on_every_rank([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      for (const std::size_t count : {0U, 1U, 3000U}) {
        Bytes data = pattern(comm.rank(), 1, count);
        comm.broadcast(data, root);
        EXPECT_EQ(data, pattern(root, 1, count));
      }
    }
  });
}

TEST_P(CommunicatorContract, GathersObjectsOfUnequalSizes) {
  on_every_rank([](Communicator& comm) {
    // Rank 1 has nothing to say.
    const auto count = [](int rank) { return rank == 1 ? 0U : 5U + 100U * to_size(rank); };
    const auto all = comm.all_gather_object(pattern(comm.rank(), 2, count(comm.rank())));
    ASSERT_EQ(all.size(), to_size(comm.size()));
    for (int r = 0; r < comm.size(); ++r) EXPECT_EQ(all[to_size(r)], pattern(r, 2, count(r)));
  });
}

TEST_P(CommunicatorContract, MovesMebibytes) {
  on_every_rank([](Communicator& comm) {
    constexpr std::size_t kCount = (1U << 20U) + 12345U;
    Bytes out(kCount * to_size(comm.size()));
    comm.all_gather(pattern(comm.rank(), 0, kCount), out);
    for (int r = 0; r < comm.size(); ++r) {
      const Bytes expected = pattern(r, 0, kCount);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                             out.begin() + static_cast<std::ptrdiff_t>(to_size(r) * kCount)));
    }
  });
}

TEST_P(CommunicatorContract, KeepsStepWhenRanksHaveNothingToDo) {
  on_every_rank([](Communicator& comm) {
    std::mt19937 random(11);
    for (int step = 0; step < 300; ++step) {
      std::vector<std::vector<std::int64_t>> sizes(to_size(comm.size()));
      for (auto& row : sizes) {
        const bool is_idle = random() % 3 == 0;
        for (int r = 0; r < comm.size(); ++r) row.push_back(is_idle ? 0 : 8);
      }
      check_all_to_all_v(comm, sizes);
      if (step % 7 == 0) comm.barrier();
    }
  });
}

// Arguments that do not agree.

TEST_P(CommunicatorPeersContract, RefusesBlocksOfUnequalSize) {
  expect_refusal("all_gather: rank " + std::to_string(last()), [&](Communicator& comm, Bytes& out) {
    const std::size_t count = comm.rank() == last() ? 32 : 64;
    comm.all_gather(Bytes(count), std::span(out).first(count * to_size(comm.size())));
  });
}

TEST_P(CommunicatorContract, RefusesAnOutputOfTheWrongSizeOnOneRank) {
  expect_refusal("rank " + std::to_string(last()), [&](Communicator& comm, Bytes& out) {
    const std::size_t missing = comm.rank() == last() ? 1 : 0;
    comm.all_gather(Bytes(64), std::span(out).first(out.size() - missing));
  });
}

TEST_P(CommunicatorContract, RefusesABlockSizeThatDoesNotFit) {
  expect_refusal("all_to_all: rank 0", [](Communicator& comm, Bytes& out) {
    comm.all_to_all(Bytes(out.size()), out, comm.rank() == 0 ? 63 : 64);
  });
}

TEST_P(CommunicatorContract, RefusesSizesThatContradictEachOther) {
  expect_refusal("all_to_all_v: rank 0 sends 7 bytes", [](Communicator& comm, Bytes& out) {
    std::vector<std::int64_t> in_bytes(to_size(comm.size()), 8);
    const std::vector<std::int64_t> out_bytes(to_size(comm.size()), 8);
    if (comm.rank() == 0) in_bytes[to_size(comm.size() - 1)] = 7;
    const auto total = std::accumulate(in_bytes.begin(), in_bytes.end(), std::int64_t{0});
    comm.all_to_all_v(Bytes(to_size(total)), in_bytes, std::span(out).first(out_bytes.size() * 8),
                      out_bytes);
  });
}

TEST_P(CommunicatorContract, RefusesNegativeAndMissingBlockSizes) {
  for (const bool is_negative : {true, false}) {
    expect_refusal("all_to_all_v: rank " + std::to_string(last()),
                   [&](Communicator& comm, Bytes& out) {
                     std::vector<std::int64_t> sizes(to_size(comm.size()), 8);
                     if (comm.rank() == last()) sizes.back() = -8;
                     if (comm.rank() == last() && !is_negative) sizes.pop_back();
                     const std::size_t total = to_size(comm.size()) * 8;
                     comm.all_to_all_v(Bytes(total), sizes, std::span(out).first(total), sizes);
                   });
  }
}

TEST_P(CommunicatorContract, RefusesElementTypesThatItCannotSum) {
  expect_refusal("reduce_scatter: rank 0", [](Communicator& comm, Bytes& out) {
    comm.reduce_scatter(Bytes(to_size(comm.size()) * 64), std::span(out).first(64),
                        comm.rank() == 0 ? DType::I32 : DType::F32);
  });
  expect_refusal("not a whole number", [](Communicator& comm, Bytes& out) {
    comm.reduce_scatter(Bytes(to_size(comm.size()) * 62), std::span(out).first(62), DType::F32);
  });
}

TEST_P(CommunicatorPeersContract, RefusesUnequalElementTypes) {
  expect_refusal("element type BF16", [&](Communicator& comm, Bytes& out) {
    comm.reduce_scatter(Bytes(to_size(comm.size()) * 64), std::span(out).first(64),
                        comm.rank() == last() ? DType::BF16 : DType::F32);
  });
}

TEST_P(CommunicatorContract, RefusesImpossibleRoots) {
  expect_refusal("root -1", [](Communicator& comm, Bytes& out) {
    comm.broadcast(out, comm.rank() == 0 ? -1 : 0);
  });
  expect_refusal("must be in",
                 [&](Communicator& comm, Bytes& out) { comm.broadcast(out, comm.size()); });
}

TEST_P(CommunicatorPeersContract, RefusesUnequalRoots) {
  expect_refusal("they must be equal", [&](Communicator& comm, Bytes& out) {
    comm.broadcast(out, comm.rank() == last() ? 1 : 0);
  });
}

TEST_P(CommunicatorPeersContract, RefusesDifferentFunctions) {
  expect_refusal("calls barrier", [&](Communicator& comm, Bytes& out) {
    if (comm.rank() == last()) return comm.barrier();
    comm.all_gather(Bytes(64), out);
  });
}

// split

TEST_P(CommunicatorContract, SplitsByColorAndOrdersByKey) {
  on_every_rank([](Communicator& comm) {
    const int color = comm.rank() % 2;
    const auto part = comm.split(color, -comm.rank());
    ASSERT_NE(part, nullptr);
    std::vector<int> members;
    for (int r = comm.size() - 1; r >= 0; --r) {
      if (r % 2 == color) members.push_back(r);
    }
    EXPECT_EQ(part->size(), static_cast<int>(members.size()));
    EXPECT_EQ(members[to_size(part->rank())], comm.rank());
    const auto all = part->all_gather_object(pattern(comm.rank(), 3, 5));
    for (std::size_t r = 0; r < members.size(); ++r) EXPECT_EQ(all[r], pattern(members[r], 3, 5));
  });
}

TEST_P(CommunicatorContract, GivesNothingForANegativeColor) {
  on_every_rank([](Communicator& comm) {
    const auto part = comm.split(comm.rank() == 0 ? -1 : 4, 0);
    EXPECT_EQ(part == nullptr, comm.rank() == 0);
    if (part != nullptr) {
      EXPECT_EQ(part->size(), comm.size() - 1);
      EXPECT_EQ(part->rank(), comm.rank() - 1);
      expect_usable(*part);
    }
    expect_usable(comm);
  });
}

TEST_P(CommunicatorContract, LetsPartsWorkByThemselves) {
  on_every_rank([](Communicator& comm) {
    const auto part = comm.split(comm.rank() % 3, 0);
    // Unequal numbers of calls: the parts do not wait for each other.
    for (int i = 0; i < 5 * (1 + comm.rank() % 3); ++i) expect_usable(*part);
    const auto half = part->split(part->rank() % 2, part->rank());
    expect_usable(*half);
    expect_usable(*part);
    expect_usable(comm);
  });
}

TEST_P(CommunicatorContract, KeepsPartsAliveWithoutTheirParent) {
  with_ownership([](std::unique_ptr<Communicator> comm) {
    const auto part = comm->split(comm->rank() % 2, 0);
    comm->barrier();
    comm.reset();
    expect_usable(*part);
  });
}

// Ranks that fail.

TEST_P(CommunicatorPeersContract, PassesOnTheCauseOfARankThatGivesUp) {
  on_every_rank([&](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == last()) comm.abort("the disk burned");
    for (int i = 0; i < 2; ++i) {  // a pending or next call, and one after it
      EXPECT_THAT(error_of(ErrorCode::PeerFailed, [&] { comm.barrier(); }),
                  testing::AllOf(testing::HasSubstr("rank " + std::to_string(last())),
                                 testing::HasSubstr("the disk burned")));
    }
  });
}

TEST_P(CommunicatorPeersContract, ReleasesRanksThatWaitInAPartWhenTheWholeGroupFails) {
  on_every_rank([&](Communicator& comm) {
    const auto part = comm.split(0, 0);
    if (comm.rank() == last()) return comm.abort("the roof leaks");
    EXPECT_THAT(error_of(ErrorCode::PeerFailed, [&] { part->barrier(); }),
                testing::AllOf(testing::HasSubstr("rank " + std::to_string(last())),
                               testing::HasSubstr("the roof leaks")));
  });
}

TEST_P(CommunicatorPeersContract, NamesARankThatLeaves) {
  with_ownership([&](std::unique_ptr<Communicator> comm) {
    comm->barrier();
    if (comm->rank() == last()) return comm.reset();
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(error_of(ErrorCode::PeerFailed, [&] { (void)comm->all_gather_object({}); }),
                  testing::HasSubstr("rank " + std::to_string(last())));
    }
  });
}

TEST_P(CommunicatorContract, LetsRanksLeaveAfterTheLastCall) {
  for (int round = 0; round < 20; ++round) {
    with_ownership([](std::unique_ptr<Communicator> comm) {
      expect_usable(*comm);
      comm.reset();
    });
  }
}

TEST_P(CommunicatorPeersContract, GivesUpASilentRankAtTheDeadline) {
  constexpr CommOptions kHasty{.deadline = std::chrono::milliseconds(500)};
  on_every_rank(
      [&](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == last()) std::this_thread::sleep_for(2 * kHasty.deadline);
        const std::string what = error_of(ErrorCode::PeerFailed, [&] { comm.barrier(); });
        EXPECT_THAT(what, testing::HasSubstr("rank " + std::to_string(last())));
        EXPECT_THAT(what, testing::HasSubstr("barrier"));
      },
      kHasty);
}

}  // namespace
}  // namespace penstock::contract
