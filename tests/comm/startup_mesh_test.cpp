// A rank that has gone must not be waited for, however early its loss was noticed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/socket.hpp"
#include "comm/startup.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

/// Rank 0 of two. Rank 1 gives its address and is no more; all that there was to hear of it was
/// heard while the addresses came, so that no socket is left that would wake a waiting rank.
class ChannelToTheDead final : public StartupChannel {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  SocketAddress local() const override { return SocketAddress::parse("unix:@penstock"); }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override {
    return {Bytes(mine.begin(), mine.end()), Bytes(mine.begin(), mine.end())};
  }
  void add_to(std::vector<pollfd>& /*waiting*/) const override {}
  void check() override { throw Error(ErrorCode::PeerFailed, "rank 1 failed"); }
};

TEST(StartupMesh, DoesNotWaitForWhomItHasHeardToBeGone) {
  ChannelToTheDead channel;
  CommOptions options;
  options.start_deadline = std::chrono::milliseconds(500);
  const std::array members{0, 1};
  for (const MeshKind kind : {MeshKind::LinksOnly, MeshKind::LinksAndData}) {
    std::string message;
    try {
      connect_mesh(channel, members, kind, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::PeerFailed);
      message = error.what();
    }
    EXPECT_EQ(message, "rank 1 failed");  // and not that the deadline has passed
  }
}

}  // namespace
}  // namespace penstock::detail
