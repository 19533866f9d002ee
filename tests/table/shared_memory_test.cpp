#include "table/sharing/shared_memory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/core/error.hpp"
#include "support/huge_pages.hpp"
#include "support/process_state.hpp"
#include "support/sanitizers.hpp"
#include "table/sharing/fd_handover.hpp"
#include "table/sharing/mapping.hpp"

namespace penstock::detail {
namespace {

constexpr std::size_t kBytes = 3 * 4096 + 17;

TEST(SharedMemory, IsPrivateToTheUserAndOfFixedSize) {
  const auto memory = SharedMemory::create(kBytes);
  struct stat status{};
  ASSERT_EQ(fstat(memory.fd(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_EQ(status.st_size, static_cast<off_t>(kBytes));
  EXPECT_EQ(ftruncate(memory.fd(), 0), -1);
  EXPECT_EQ(ftruncate(memory.fd(), 1 << 20), -1);
  EXPECT_NO_THROW(check_shared_memory(memory.fd(), kBytes));
  EXPECT_THROW(check_shared_memory(memory.fd(), kBytes + 1), Error);
}

TEST(SharedMemory, ReadersMapItBeforeTheSealAndSeeWhatWasWrittenAfter) {
  const auto memory = SharedMemory::create(kBytes);
  const UniqueFd fd = memory.read_only_fd();
  const auto reader = Mapping::shared(fd.get(), kBytes, Access::Read);
  {
    const auto writer = Mapping::shared(memory.fd(), kBytes, Access::ReadWrite);
    writer.reserve(StopFlag{});
    writer.data()[kBytes - 1] = std::byte{42};
    EXPECT_THROW(memory.seal(), Error);  // a writable mapping is left
  }
  EXPECT_NO_THROW(memory.seal());
  EXPECT_EQ(reader.data()[kBytes - 1], std::byte{42});
  EXPECT_NO_THROW(check_sealed(fd.get()));
}

TEST(SharedMemory, CannotBeWrittenOnceSealed) {
  const auto memory = SharedMemory::create(kBytes);
  EXPECT_THROW(check_sealed(memory.fd()), Error);
  memory.seal();
  EXPECT_NO_THROW(check_sealed(memory.fd()));
  EXPECT_THROW(Mapping::shared(memory.fd(), kBytes, Access::ReadWrite), Error);
  const char byte = 1;
  EXPECT_EQ(pwrite(memory.fd(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedMemory, ReadersCannotMakeTheirViewWritable) {
  const auto memory = SharedMemory::create(kBytes);
  const auto reader = Mapping::shared(memory.read_only_fd().get(), kBytes, Access::Read);
  EXPECT_EQ(mprotect(reader.data(), kBytes, PROT_READ | PROT_WRITE), -1);
  EXPECT_THROW(Mapping::shared(memory.read_only_fd().get(), kBytes, Access::ReadWrite), Error);
}

TEST(SharedMemory, OfHugePagesIsFixedAndSealedLikeAnyOther) {
  const test::HugePages pages(2);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const auto memory = SharedMemory::create(kHugePageBytes, PageKind::Huge);
  EXPECT_EQ(ftruncate(memory.fd(), 0), -1);
  const UniqueFd fd = memory.read_only_fd();
  const auto reader = Mapping::shared(fd.get(), kHugePageBytes, Access::Read);
  EXPECT_EQ(mprotect(reader.data(), kHugePageBytes, PROT_READ | PROT_WRITE), -1);
  {
    const auto writer = Mapping::shared(memory.fd(), kHugePageBytes, Access::ReadWrite);
    writer.reserve(StopFlag{});
    writer.data()[kHugePageBytes - 1] = std::byte{42};
    EXPECT_THROW(memory.seal(), Error);
  }
  EXPECT_NO_THROW(memory.seal());
  EXPECT_EQ(reader.data()[kHugePageBytes - 1], std::byte{42});
  EXPECT_THROW(Mapping::shared(memory.fd(), kHugePageBytes, Access::ReadWrite), Error);
  EXPECT_NO_THROW(check_sealed(fd.get()));
}

TEST(SharedMemory, OfMoreHugePagesThanThereAreIsAnErrorAndNoSignal) {
  const test::HugePages pages(1);  // for the lock: nobody else changes the pool
  const auto bytes = static_cast<std::size_t>(test::HugePages::free_pages() + 1) * kHugePageBytes;
  try {
    const auto memory = SharedMemory::create(bytes, PageKind::Huge);
    Mapping::shared(memory.fd(), bytes, Access::ReadWrite).reserve(StopFlag{});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::OutOfMemory || error.code() == ErrorCode::Unsupported)
        << error.what();
  }
}

TEST(Mapping, ReservingMemoryThatIsNotThereIsAnErrorAndNoSignal) {
  const auto memory = SharedMemory::create(4096);
  const auto mapping = Mapping::shared(memory.fd(), 2 * 4096, Access::ReadWrite);
  try {
    mapping.reserve(StopFlag{});  // the second page lies behind the end of the file
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
    EXPECT_THAT(error.what(), testing::HasSubstr("8192 bytes"));
  }
}

TEST(Mapping, StopsReservingWhenTold) {
  const auto mapping = Mapping::anonymous(std::size_t{1} << 20);
  StopFlag stop;
  stop.stop();
  EXPECT_THROW(mapping.reserve(stop), Error);
}

TEST(Mapping, StopsPrefaultingWhenTold) {
  const auto memory = SharedMemory::create(std::size_t{1} << 20U);
  const auto mapping = Mapping::shared(memory.fd(), std::size_t{1} << 20U, Access::Read);
  struct stat status{};
  StopFlag stop;
  stop.stop();
  mapping.prefault_for_reading(stop);
  ASSERT_EQ(fstat(memory.fd(), &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  mapping.prefault_for_reading(StopFlag{});
  ASSERT_EQ(fstat(memory.fd(), &status), 0);
  EXPECT_GT(status.st_blocks, 0);
}

TEST(Mapping, OfNothingIsLegal) {
  const auto empty = Mapping::anonymous(0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_NO_THROW(empty.reserve(StopFlag{}));
  EXPECT_NO_THROW(empty.make_read_only());
  EXPECT_NO_THROW(empty.prefault_for_reading(StopFlag{}));
  const auto memory = SharedMemory::create(0);
  EXPECT_NO_THROW(Mapping::shared(memory.fd(), 0, Access::ReadWrite));
  EXPECT_NO_THROW(memory.seal());
}

TEST(FdServer, HandsItsDescriptorToEveryAsker) {
  const int descriptors = test::open_descriptors();
  const auto memory = SharedMemory::create(kBytes);
  {
    const FdServer server(memory.read_only_fd());
    std::array<std::thread, 8> askers;
    for (auto& asker : askers) {
      asker = std::thread([&] {
        const UniqueFd fd = receive_fd(server.address(), StopFlag{});
        EXPECT_NO_THROW(check_shared_memory(fd.get(), kBytes));
      });
    }
    for (auto& asker : askers) asker.join();
  }
  EXPECT_EQ(test::open_descriptors(), descriptors + 1);
}

TEST(FdServer, HandsOutAsManyAsAMessageHoldsInTheirOrder) {
  const int descriptors = test::open_descriptors();
  std::vector<UniqueFd> fds;
  for (std::size_t i = 0; i < kMaxFdsOfMessage; ++i) {
    fds.push_back(SharedMemory::create(i + 1).read_only_fd());
  }
  {
    const FdServer server(std::move(fds));
    const auto received = receive_fds(server.address(), StopFlag{});
    ASSERT_EQ(received.size(), kMaxFdsOfMessage);
    for (std::size_t i = 0; i < received.size(); ++i) {
      EXPECT_NO_THROW(check_shared_memory(received[i].get(), i + 1));
    }
    EXPECT_THROW(receive_fd(server.address(), StopFlag{}), Error);  // not the one
  }
  EXPECT_EQ(test::open_descriptors(), descriptors);
  EXPECT_THROW(FdServer(std::vector<UniqueFd>{}), Error);
  EXPECT_THROW(FdServer(std::vector<UniqueFd>(kMaxFdsOfMessage + 1)), Error);
}

TEST(FdServer, SaysSoWhereTheAskerHasNoRoomForAll) {
  const int descriptors = test::open_descriptors();
  std::vector<UniqueFd> fds;
  for (std::size_t i = 0; i < 40; ++i) fds.push_back(SharedMemory::create(1).read_only_fd());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  std::string message;
  {
    const FdServer server(std::move(fds));
    const rlimit tight{static_cast<rlim_t>(descriptors) + 40 + 20, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
    try {
      receive_fds(server.address(), StopFlag{});
    } catch (const Error& error) {
      message = error.what();
    }
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  }
  EXPECT_THAT(message,
              testing::HasSubstr("of 40 descriptors; needed: a higher limit of open files"));
  EXPECT_EQ(test::open_descriptors(), descriptors);  // those that came are closed again
}

/// Takes every descriptor that this process may still have.
class WithoutDescriptors {
 public:
  WithoutDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit tight{std::min<rlim_t>(1024, before_.rlim_cur), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &tight);
    while (UniqueFd fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}) taken_.push_back(std::move(fd));
  }
  ~WithoutDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  WithoutDescriptors(const WithoutDescriptors&) = delete;
  WithoutDescriptors& operator=(const WithoutDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

TEST(FdServer, ServesWhereItsProcessHasNoDescriptorLeft) {
  if (test::kSanitizers.find("undefined") != std::string_view::npos) {
    GTEST_SKIP() << "the sanitizer opens a pipe to find out whether it may read an object's type";
  }
  const FdServer server(SharedMemory::create(kBytes).read_only_fd());
  std::array<int, 2> gate{};
  ASSERT_EQ(::pipe2(gate.data(), O_CLOEXEC), 0);
  const pid_t asker = fork();
  if (asker == 0) {
    char go = 0;
    if (::read(gate[0], &go, 1) != 1) _exit(2);
    try {
      // More than once: the server takes its place back.
      for (int i = 0; i < 3; ++i) receive_fd(server.address(), StopFlag{});
      _exit(0);
    } catch (const Error&) {
      _exit(1);
    }
  }
  int status = 0;
  {
    const WithoutDescriptors full;
    ASSERT_EQ(::write(gate[1], "x", 1), 1);
    ASSERT_EQ(waitpid(asker, &status, 0), asker);
  }
  ::close(gate[0]);
  ::close(gate[1]);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ReceiveFd, StandsInLineWhereMoreAskThanTheSystemQueues) {
  const std::string name = "penstock-test-" + std::to_string(getpid());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(name, address.sun_path + 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  const auto make_socket = [] {
    return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  };
  const UniqueFd busy = make_socket();
  ASSERT_EQ(::bind(busy.get(), generic, bytes), 0);
  ASSERT_EQ(::listen(busy.get(), 0), 0);
  std::vector<UniqueFd> queued;
  do queued.push_back(make_socket());
  while (::connect(queued.back().get(), generic, bytes) == 0);
  ASSERT_EQ(errno, EAGAIN);
  StopFlag stop;
  stop.stop();
  try {
    receive_fd(name, stop);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::PeerFailed) << error.what();
  }
}

TEST(FdServer, IsGoneAfterItsEnd) {
  std::string address;
  {
    const FdServer server(SharedMemory::create(1).read_only_fd());
    address = server.address();
  }
  EXPECT_THROW(receive_fd(address, StopFlag{}), Error);
  EXPECT_THROW(receive_fd("penstock-nobody", StopFlag{}), Error);
  EXPECT_THROW(receive_fd(std::string(200, 'x'), StopFlag{}), Error);
  EXPECT_THROW(receive_fd("", StopFlag{}), Error);
}

TEST(FdServer, SurvivesAskersThatLeaveAtOnce) {
  const FdServer server(SharedMemory::create(kBytes).read_only_fd());
  StopFlag stopped;
  stopped.stop();
  for (int i = 0; i < 20; ++i) {
    try {
      receive_fd(server.address(), stopped);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::PeerFailed) << error.what();
    }
  }
  EXPECT_TRUE(receive_fd(server.address(), StopFlag{}));
}

TEST(FdServer, RefusesOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const FdServer server(SharedMemory::create(kBytes).read_only_fd());
  const pid_t child = fork();
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(2);
    try {
      receive_fd(server.address(), StopFlag{});
      _exit(1);
    } catch (const Error&) {
      _exit(0);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace penstock::detail
