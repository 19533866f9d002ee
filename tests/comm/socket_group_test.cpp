#include "penstock/comm/socket_group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator_contract.hpp"
#include "comm/socket.hpp"

namespace penstock {
namespace {

using contract::error_of;

/// Ranks as threads that are connected by sockets all the same.
void run_over_sockets(const std::string& address, int size, const CommOptions& options,
                      const contract::RankBody& body) {
  SocketGroupHost host(address);
  const std::string meeting_point = host.address();
  std::vector<std::jthread> threads;
  threads.emplace_back(
      [&, moved = std::move(host)]() mutable { body(moved.make_communicator(size, options)); });
  for (int rank = 1; rank < size; ++rank) {
    threads.emplace_back(
        [&, rank] { body(join_socket_group(rank, size, meeting_point, options)); });
  }
}

contract::Backend over_sockets(const std::string& name, const std::string& address, int ranks) {
  return {.name = name + std::to_string(ranks),
          .size = ranks,
          .run = [address](int size, const CommOptions& options, const contract::RankBody& body) {
            const std::string mine =
                address.empty() ? "unix:@penstock-" + detail::random_token() : address;
            run_over_sockets(mine, size, options, body);
          }};
}
contract::Backend over_tcp(int ranks) {
  return over_sockets("tcp", "127.0.0.1:0", ranks);
}
contract::Backend over_unix(int ranks) {
  return over_sockets("unix", "", ranks);
}

constexpr CommOptions kHasty{.start_deadline = std::chrono::milliseconds(200)};

TEST(JoinSocketGroup, RefusesImpossibleArguments) {
  EXPECT_THROW((void)join_socket_group(2, 2, "127.0.0.1:0"), Error);
  EXPECT_THROW((void)join_socket_group(0, 0, "127.0.0.1:0"), Error);
  for (const char* address : {"", "nowhere", "unix:", "unix:x", ":1", "h:-1", "h:70000", "h:1x"}) {
    EXPECT_THAT(
        error_of(ErrorCode::InvalidArgument, [&] { (void)join_socket_group(0, 1, address); }),
        testing::HasSubstr("address " + std::string(address)));
  }
}

TEST(JoinSocketGroup, NamesTheRanksThatDoNotCome) {
  SocketGroupHost host;
  EXPECT_THAT(error_of(ErrorCode::PeerFailed, [&] { (void)host.make_communicator(3, kHasty); }),
              testing::HasSubstr("rank 1, 2 failed: did not come within 200 ms"));
  EXPECT_THAT(error_of(ErrorCode::PeerFailed,
                       [&] { (void)join_socket_group(1, 2, "unix:@penstock-nobody", kHasty); }),
              testing::HasSubstr("rank 1 cannot reach rank 0"));
}

TEST(JoinSocketGroup, RaisesOnEveryRankWhenTheyDifferAboutTheSize) {
  SocketGroupHost host;
  const std::string address = host.address();
  std::jthread other([&] {
    EXPECT_THAT(
        error_of(ErrorCode::InvalidArgument, [&] { (void)join_socket_group(1, 3, address); }),
        testing::HasSubstr("rank 1 expects 3 ranks, rank 0 expects 2"));
  });
  error_of(ErrorCode::InvalidArgument, [&] { (void)host.make_communicator(2); });
}

TEST(JoinSocketGroup, RaisesOnEveryRankWhenTwoClaimOneRank) {
  SocketGroupHost host;
  const std::string address = host.address();
  std::vector<std::jthread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      EXPECT_THAT(
          error_of(ErrorCode::InvalidArgument, [&] { (void)join_socket_group(1, 3, address); }),
          testing::HasSubstr("two processes claim to be rank 1"));
    });
  }
  error_of(ErrorCode::InvalidArgument, [&] { (void)host.make_communicator(3); });
}

TEST(JoinSocketGroup, SaysThatAnAddressIsTaken) {
  const SocketGroupHost host;
  EXPECT_THAT(error_of(ErrorCode::System, [&] { const SocketGroupHost other(host.address()); }),
              testing::HasSubstr(host.address()));
}

TEST(JoinSocketGroup, IgnoresStrangers) {
  SocketGroupHost host;
  const auto address = detail::SocketAddress::parse(host.address());
  const auto now = std::chrono::steady_clock::now();
  // One is silent, one leaves, one talks of something else.
  const auto silent = detail::connect_to(address, now + std::chrono::seconds(5));
  detail::connect_to(address, now + std::chrono::seconds(5)).reset();
  const auto talker = detail::connect_to(address, now + std::chrono::seconds(5));
  const std::string request = "GET / HTTP/1.1\r\nHost: penstock\r\n\r\n";
  detail::send_some(talker.get(), std::as_bytes(std::span(request)));
  std::jthread other(
      [text = host.address()] { contract::expect_usable(*join_socket_group(1, 2, text)); });
  contract::expect_usable(*host.make_communicator(2));
}

TEST(JoinSocketGroup, LeavesNoFileBehind) {
  const auto folder = std::filesystem::temp_directory_path() / detail::random_token();
  std::filesystem::create_directory(folder);
  run_over_sockets("unix:" + (folder / "meet").string(), 3, {},
                   [](std::unique_ptr<Communicator> comm) {
                     contract::expect_usable(*comm);
                     contract::expect_usable(*comm->split(comm->rank() % 2, 0));
                   });
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(ConnectTo, LooksOutWhileAConnectionTakesLong) {
  const detail::Listener listener(detail::SocketAddress::parse("127.0.0.1:0"));
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  // Connections that nobody takes: once there is no room, the system does not answer the next.
  std::vector<detail::UniqueFd> queued;
  const auto soon = [] { return std::chrono::steady_clock::now() + std::chrono::milliseconds(20); };
  const auto fill = [&] {
    for (int i = 0; i < 64; ++i) queued.push_back(detail::connect_to(listener.address(), soon()));
  };
  EXPECT_THAT(error_of(ErrorCode::Timeout, fill), testing::HasSubstr("nobody listens at"));
  int num_looks = 0;
  const auto connect = [&] {
    detail::connect_to(listener.address(), soon() + std::chrono::minutes(5), [&] {
      if (++num_looks == 3) throw Error(ErrorCode::PeerFailed, "rank 1 failed");
    });
  };
  EXPECT_EQ(error_of(ErrorCode::PeerFailed, connect), "rank 1 failed");
}

TEST(SocketAddress, ReadsWhatItWrites) {
  for (const char* text : {"127.0.0.1:29500", "[::1]:7", "unix:@penstock-x", "unix:/tmp/x"}) {
    EXPECT_EQ(detail::SocketAddress::parse(text).text(), text);
  }
}

}  // namespace

namespace contract {
INSTANTIATE_TEST_SUITE_P(Sockets, CommunicatorContract,
                         testing::Values(over_tcp(1), over_tcp(3), over_unix(8)), backend_name);
INSTANTIATE_TEST_SUITE_P(Sockets, CommunicatorPeersContract,
                         testing::Values(over_tcp(2), over_tcp(5), over_unix(8)), backend_name);
}  // namespace contract
}  // namespace penstock
