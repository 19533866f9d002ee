#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/callbacks_over.hpp"
#include "comm/communicator_contract.hpp"

namespace penstock {
namespace {

using contract::Bytes;
using contract::error_of;
using contract::to_size;
using test::Callbacks;
using test::callbacks_over;

contract::Backend over_threads(int ranks, Callbacks which) {
  const std::string kind = which == Callbacks::All ? "all" : "fewest";
  return {
      .name = kind + std::to_string(ranks),
      .size = ranks,
      .run = [which](int size, const CommOptions& options, const contract::RankBody& body) {
        auto members = make_thread_group(size, options);
        std::vector<std::jthread> threads;
        for (auto& member : members) {
          threads.emplace_back([&, comm = std::move(member)]() mutable {
            const int rank = comm->rank();
            body(make_callback_communicator(rank, size, callbacks_over(std::move(comm), which)));
          });
        }
      }};
}

CommCallbacks one_answer(std::vector<Bytes> answer) {
  CommCallbacks callbacks;
  callbacks.all_gather = [answer = std::move(answer)](std::span<const std::byte>) {
    return answer;
  };
  return callbacks;
}

TEST(CallbackCommunicator, RefusesImpossibleArguments) {
  EXPECT_THROW(make_callback_communicator(1, 1, one_answer({})), Error);
  EXPECT_THROW(make_callback_communicator(0, 0, one_answer({})), Error);
  EXPECT_THROW(make_callback_communicator(0, 1, {}), Error);
}

TEST(CallbackCommunicator, TurnsWhateverACallbackThrowsIntoPeerFailed) {
  CommCallbacks callbacks;
  int calls = 0;
  callbacks.all_gather = [&](std::span<const std::byte>) -> std::vector<Bytes> {
    if (++calls == 1) throw std::runtime_error("the ring broke");
    throw 7;
  };
  const auto comm = make_callback_communicator(0, 2, callbacks);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(error_of(ErrorCode::PeerFailed, [&] { comm->barrier(); }), "barrier: the ring broke");
  }
  EXPECT_EQ(calls, 1) << "a group that failed calls nobody any more";
  callbacks.all_gather = [](std::span<const std::byte>) -> std::vector<Bytes> { throw 7; };
  const auto other = make_callback_communicator(0, 2, callbacks);
  EXPECT_THAT(error_of(ErrorCode::PeerFailed, [&] { other->barrier(); }),
              testing::HasSubstr("unknown type"));
}

TEST(CallbackCommunicator, RefusesAnswersThatCannotBeRight) {
  const std::vector<std::vector<Bytes>> answers{
      {},                               // nobody
      {Bytes(100)},                     // one rank of two
      {Bytes(3), Bytes(3)},             // shorter than any message
      {Bytes(8), Bytes(8)},             // a call of no bytes
      {Bytes(64, std::byte{0xFF}), {}}  // a call of absurd size
  };
  for (const auto& answer : answers) {
    const auto comm = make_callback_communicator(0, 2, one_answer(answer));
    error_of(ErrorCode::PeerFailed, [&] { comm->barrier(); });
  }
}

TEST(CallbackCommunicator, RefusesBlocksOfOtherSizesThanWereAgreed) {
  CommCallbacks callbacks;
  callbacks.all_gather = [](std::span<const std::byte> mine) {
    return std::vector<Bytes>(2, Bytes(mine.begin(), mine.end()));
  };
  callbacks.all_to_all = [](const std::vector<Bytes>&) { return std::vector<Bytes>(2, Bytes(3)); };
  const auto comm = make_callback_communicator(0, 2, callbacks);
  Bytes out(8, std::byte{1});
  error_of(ErrorCode::PeerFailed, [&] { comm->all_to_all(Bytes(8), out, 4); });
  EXPECT_EQ(out, Bytes(8, std::byte{1}));
}

TEST(CallbackCommunicator, SaysThatItCannotSplitWithoutACallback) {
  CommCallbacks callbacks;
  callbacks.all_gather = [](std::span<const std::byte> mine) {
    return std::vector<Bytes>(1, Bytes(mine.begin(), mine.end()));
  };
  const auto comm = make_callback_communicator(0, 1, callbacks);
  error_of(ErrorCode::Unsupported, [&] { (void)comm->split(0, 0); });
  contract::expect_usable(*comm);
}

}  // namespace

namespace contract {
INSTANTIATE_TEST_SUITE_P(Callbacks, CommunicatorContract,
                         testing::Values(over_threads(1, Callbacks::All),
                                         over_threads(3, Callbacks::All),
                                         over_threads(8, Callbacks::All),
                                         over_threads(4, Callbacks::FewestPossible)),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(Callbacks, CommunicatorPeersContract,
                         testing::Values(over_threads(2, Callbacks::All),
                                         over_threads(8, Callbacks::All),
                                         over_threads(4, Callbacks::FewestPossible)),
                         backend_name);
}  // namespace contract
}  // namespace penstock
