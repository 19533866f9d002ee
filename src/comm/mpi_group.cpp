// Ranks of MPI_COMM_WORLD. Messages go point to point and are polled, so that a call can end at its
// deadline or with bad news; whether the others live is watched by sockets, since MPI does not say.

#include <fcntl.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/copy_bytes.hpp"
#include "comm/linked_group.hpp"
#include "comm/startup.hpp"
#include "core/failure_point.hpp"
#include "core/to_size.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::to_size;

using detail::Deadline;
using detail::LinkedGroup;
using detail::StartupChannel;
using Bytes = CommCallbacks::Bytes;
using Outgoing = std::vector<std::span<const std::byte>>;

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int count = 0;
  MPI_Error_string(code, text.data(), &count);
  throw Error(ErrorCode::System, fmt::format("{}: {}", call, text.data()));
}

/// MPI of this process: initialised on first use unless somebody has, and ended by whoever began it.
class Session {
 public:
  static Session& instance() {
    static Session session;
    return session;
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Carries all our messages. Tags tell the groups apart, so that splitting costs MPI nothing.
  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Sets `count` tags aside. Ranks that take the largest first tag of all of them have tags that
  /// none of them uses elsewhere.
  int reserve_tags(int count) { return next_tag_.fetch_add(count); }
  void skip_tags_below(int tag) {
    int next = next_tag_.load();
    while (next < tag && !next_tag_.compare_exchange_weak(next, tag)) {
    }
  }

  /// After a failure MPI_Finalize could wait for ever for a rank that is no more.
  void note_failure() { has_failure_ = true; }

 private:
  Session() {
    int is_initialised = 0;
    MPI_Initialized(&is_initialised);
    is_owner_ = is_initialised == 0;
    int provided = 0;
    if (is_owner_) {
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided),
                "MPI_Init_thread");
    }
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  ~Session() {
    if (is_owner_ && !has_failure_) MPI_Finalize();
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool is_owner_ = false;
  std::atomic<int> next_tag_ = 1;  ///< 0 is for start-up.
  std::atomic<bool> has_failure_ = false;
};

/// Which messages belong to a group.
struct Route {
  int tag = 0;
  int rank = 0;
  std::vector<int> world_ranks;
};

struct Head {
  std::uint64_t call = 0;  ///< Counts the calls of the group: equal at both ends.
  std::uint64_t bytes = 0;
};

// One message for all that is small: below MPI's own limit for sending without asking first.
constexpr std::size_t kFirstMessageBytes = 2048;
constexpr std::size_t kInlineBytes = kFirstMessageBytes - sizeof(Head);
// MPI counts in int.
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 30U;

/// One call's traffic with one peer: a first message of fixed size at most, then the rest.
struct MpiLane {
  Bytes first_out;
  Bytes first_in;
  Bytes in;
  MPI_Request first_receive = MPI_REQUEST_NULL;
  std::vector<MPI_Request> receives;
  std::vector<MPI_Request> sends;
  bool is_received = false;
  bool is_sent = false;
};

bool is_complete(std::vector<MPI_Request>& requests) {
  int is_done = 0;
  check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &is_done,
                        MPI_STATUSES_IGNORE),
            "MPI_Testall");
  return is_done != 0;
}

/// All messages of one call of one rank.
class Traffic {
 public:
  Traffic(const Route& route, const Outgoing& out, std::uint64_t call)
      : route_(route),
        call_(call),
        lanes_(std::make_unique<std::vector<MpiLane>>(out.size())) {
    for (std::size_t r = 0; r < out.size(); ++r) {
      MpiLane& lane = (*lanes_)[r];
      lane.is_received = lane.is_sent = r == to_size(route_.rank);
      if (!lane.is_sent) post(lane, route_.world_ranks[r], out[r]);
    }
  }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  ~Traffic() {
    bool is_idle = true;
    for (MpiLane& lane : *lanes_) is_idle = cancel(lane) && is_idle;
    // What MPI may still write to must stay: a few blocks, once, after a failure.
    if (!is_idle) static_cast<void>(lanes_.release());  // NOLINT(bugprone-unused-return-value)
  }

  /// Moves what can be moved. True when all is done.
  bool advance() {
    bool is_done = true;
    for (std::size_t r = 0; r < lanes_->size(); ++r) {
      MpiLane& lane = (*lanes_)[r];
      if (!lane.is_sent) lane.is_sent = is_complete(lane.sends);
      if (!lane.is_received) lane.is_received = receive(lane, route_.world_ranks[r]);
      is_done = is_done && lane.is_sent && lane.is_received;
    }
    return is_done;
  }

  bool is_done_with(int r) const {
    return (*lanes_)[to_size(r)].is_sent && (*lanes_)[to_size(r)].is_received;
  }

  /// A rank from which nothing came is to blame before one that is slow to take.
  int find_late() const {
    int late = route_.rank;
    for (int r = static_cast<int>(lanes_->size()) - 1; r >= 0; --r) {
      if (!(*lanes_)[to_size(r)].is_sent) late = r;
    }
    for (int r = static_cast<int>(lanes_->size()) - 1; r >= 0; --r) {
      if (!(*lanes_)[to_size(r)].is_received) late = r;
    }
    return late;
  }

  std::vector<Bytes> take() {
    std::vector<Bytes> in;
    for (MpiLane& lane : *lanes_) in.push_back(std::move(lane.in));
    return in;
  }

 private:
  MPI_Request send(std::span<const std::byte> bytes, int to) const {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, route_.tag,
                        Session::instance().comm(), &request),
              "MPI_Isend");
    return request;
  }

  MPI_Request start_receive(std::span<std::byte> bytes, int from) const {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, from, route_.tag,
                        Session::instance().comm(), &request),
              "MPI_Irecv");
    return request;
  }

  void post(MpiLane& lane, int peer, std::span<const std::byte> out) const {
    lane.first_in.resize(kFirstMessageBytes);
    lane.first_receive = start_receive(lane.first_in, peer);
    const Head head{.call = call_, .bytes = out.size()};
    const std::size_t inlined = std::min(out.size(), kInlineBytes);
    lane.first_out.resize(sizeof(head) + inlined);
    std::memcpy(lane.first_out.data(), &head, sizeof(head));
    detail::copy_bytes(out.first(inlined), lane.first_out.data() + sizeof(head));
    lane.sends.push_back(send(lane.first_out, peer));
    for (auto rest = out.subspan(inlined); !rest.empty();) {
      const auto part = rest.first(std::min(rest.size(), kMaxMessageBytes));
      lane.sends.push_back(send(part, peer));
      rest = rest.subspan(part.size());
    }
  }

  bool receive(MpiLane& lane, int peer) const {
    if (lane.first_receive != MPI_REQUEST_NULL) {
      int has_come = 0;
      MPI_Status status;
      check_mpi(MPI_Test(&lane.first_receive, &has_come, &status), "MPI_Test");
      if (has_come == 0) return false;
      int count = 0;
      MPI_Get_count(&status, MPI_BYTE, &count);
      read_first(lane, peer, std::span(lane.first_in).first(to_size(count)));
    }
    return is_complete(lane.receives);
  }

  void read_first(MpiLane& lane, int peer, std::span<const std::byte> message) const {
    Head head;
    const bool has_head = message.size() >= sizeof(head);
    if (has_head) std::memcpy(&head, message.data(), sizeof(head));
    const std::size_t inlined = std::min<std::size_t>(head.bytes, kInlineBytes);
    if (!has_head || head.call != call_ || message.size() != sizeof(head) + inlined) {
      throw Error(ErrorCode::PeerFailed,
                  fmt::format("world rank {} sent a message of another call", peer));
    }
    lane.in.resize(head.bytes);
    detail::copy_bytes(message.subspan(sizeof(head)), lane.in.data());
    for (auto rest = std::span(lane.in).subspan(inlined); !rest.empty();) {
      const auto part = rest.first(std::min(rest.size(), kMaxMessageBytes));
      lane.receives.push_back(start_receive(part, peer));
      rest = rest.subspan(part.size());
    }
  }

  /// Withdraws what has not come. False if MPI may still use the lane's memory.
  static bool cancel(MpiLane& lane) {
    std::vector<MPI_Request> open = std::move(lane.receives);
    open.push_back(lane.first_receive);
    bool is_idle = true;
    for (MPI_Request& request : open) {
      if (request == MPI_REQUEST_NULL) continue;
      int is_done = 0;
      MPI_Cancel(&request);
      MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
      is_idle = is_idle && is_done != 0;
    }
    for (MPI_Request& request : lane.sends) is_idle = is_idle && request == MPI_REQUEST_NULL;
    return is_idle;
  }

  const Route& route_;
  const std::uint64_t call_;
  std::unique_ptr<std::vector<MpiLane>> lanes_;
};

/// Waits between two looks at MPI, which has nothing to sleep on: first by yielding, as long as an
/// answer on the way takes, then by sleeping until there is bad news.
class Patience {
 public:
  void wait(const std::vector<pollfd>& news, Deadline deadline) {
    constexpr int kYields = 200;
    constexpr auto kNap = std::chrono::milliseconds(1);
    if (++turns_ < kYields) {
      ::sched_yield();
      return;
    }
    std::vector<pollfd> waiting = news;
    const Deadline next = std::min(deadline, std::chrono::steady_clock::now() + kNap);
    ::poll(waiting.data(), waiting.size(), detail::poll_timeout(next));
  }

 private:
  int turns_ = 0;
};

/// An IPv4 address of this machine that others can reach, as far as can be told.
std::string own_address() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return "127.0.0.1:0";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, ::freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const auto host = ntohl(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr);
    constexpr unsigned kLoopbackNet = 127;
    if (host >> 24U == kLoopbackNet) continue;
    return fmt::format("{}.{}.{}.{}:0", host >> 24U, (host >> 16U) & 0xFFU, (host >> 8U) & 0xFFU,
                       host & 0xFFU);
  }
  return "127.0.0.1:0";
}

/// What two ranks have in common if names of the one are names of the other: the boot of a machine
/// and its network namespace.
std::string machine_identity() {
  std::error_code ignored;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", ignored).string();
  std::string boot(64, '\0');
  const detail::UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t count = file ? ::read(file.get(), boot.data(), boot.size()) : 0;
  boot.resize(static_cast<std::size_t>(std::max<ssize_t>(0, count)));
  return network + boot;
}

/// All ranks of the session, before they are linked: nobody can hear of a death yet, but mpirun ends
/// the job then.
class SessionChannel final : public StartupChannel {
 public:
  explicit SessionChannel(const CommOptions& options) : options_(options) {
    route_.rank = Session::instance().rank();
    route_.world_ranks.resize(to_size(Session::instance().size()));
    std::iota(route_.world_ranks.begin(), route_.world_ranks.end(), 0);
    const std::string mine = machine_identity();
    const auto all = all_gather(std::as_bytes(std::span(mine)));
    const bool is_one_machine =
        std::ranges::all_of(all, [&](const Bytes& other) { return other == all[0]; });
    local_ = detail::SocketAddress::parse(is_one_machine ? "unix:@penstock" : own_address());
  }

  int rank() const override { return route_.rank; }
  int size() const override { return static_cast<int>(route_.world_ranks.size()); }
  detail::SocketAddress local() const override { return local_; }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override {
    const Deadline deadline = std::chrono::steady_clock::now() + options_.start_deadline;
    Traffic traffic(route_, Outgoing(to_size(size()), mine), num_calls_++);
    Patience patience;
    while (!traffic.advance()) {
      patience.wait({}, deadline);
      if (std::chrono::steady_clock::now() < deadline) continue;
      throw Error(ErrorCode::PeerFailed,
                  fmt::format("start-up: rank {} failed: did not come within {} ms",
                              traffic.find_late(), options_.start_deadline.count()));
    }
    auto in = traffic.take();
    in[to_size(rank())].assign(mine.begin(), mine.end());
    return in;
  }

  void add_to(std::vector<pollfd>& /*waiting*/) const override {}
  void check() override {}

 private:
  const CommOptions options_;
  Route route_;
  detail::SocketAddress local_;
  std::uint64_t num_calls_ = 0;
};

/// Agrees on tags that no rank of `group` uses: the first of `count`.
template <typename Gathering>
int agree_tags(Gathering& group, int count) {
  int first = Session::instance().reserve_tags(count);
  for (const Bytes& other : group.all_gather(std::as_bytes(std::span(&first, 1)))) {
    int proposal = 0;
    if (other.size() == sizeof(proposal)) std::memcpy(&proposal, other.data(), sizeof(proposal));
    first = std::max(first, proposal);
  }
  Session::instance().skip_tags_below(first + count);
  return first;
}

class MpiGroup final : public LinkedGroup {
 public:
  MpiGroup(detail::Mesh mesh, Route route, const detail::SocketAddress& local,
           std::shared_ptr<detail::GroupFamily> family, const CommOptions& options)
      : LinkedGroup(route.rank, std::move(mesh.links), route.world_ranks, local, std::move(family),
                    options),
        route_(std::move(route)) {}

 private:
  std::vector<Bytes> transfer(const Outgoing& out) override {
    try {
      return transfer_or_throw(out);
    } catch (...) {
      Session::instance().note_failure();
      throw;
    }
  }

  std::vector<Bytes> transfer_or_throw(const Outgoing& out) {
    const Deadline deadline = std::chrono::steady_clock::now() + options().deadline;
    Traffic traffic(route_, out, num_calls());
    std::vector<pollfd> news;
    links().add_to(news);
    Patience patience;
    while (!traffic.advance()) {
      patience.wait(news, deadline);
      check();
      for (int r = 0; r < size(); ++r) {
        if (!traffic.is_done_with(r) && is_lost(r)) lose(r);
      }
      if (std::chrono::steady_clock::now() >= deadline) give_up(traffic.find_late());
    }
    return traffic.take();
  }

  /// Whether `peer` does not finish the call under way. One that left after its part of it does.
  bool is_lost(int peer) {
    const auto calls = links().calls_when_left(peer);
    if (calls) return *calls <= num_calls();
    return links().is_gone(peer);
  }

  detail::MeshKind mesh_kind() const override { return detail::MeshKind::LinksOnly; }

  void prepare_split(std::size_t num_parts) override {
    first_part_tag_ = agree_tags(*this, static_cast<int>(num_parts));
  }

  std::shared_ptr<LinkedGroup> make_part(detail::Mesh mesh, int part, int place,
                                         std::vector<int> world_ranks) override {
    Route route{
        .tag = first_part_tag_ + part, .rank = place, .world_ranks = std::move(world_ranks)};
    return std::make_shared<MpiGroup>(std::move(mesh), std::move(route), local(), family(),
                                      options());
  }

  const Route route_;
  int first_part_tag_ = 0;
};

std::unique_ptr<Communicator> connect_world(const CommOptions& options) {
  detail::set_failure_rank(Session::instance().rank(), detail::RankKind::Process);
  detail::failure_point(detail::FailurePoint::StartLaunched);
  SessionChannel channel(options);
  Route route{.tag = agree_tags(channel, 1), .rank = channel.rank(), .world_ranks = {}};
  route.world_ranks.resize(to_size(channel.size()));
  std::iota(route.world_ranks.begin(), route.world_ranks.end(), 0);
  detail::Mesh mesh =
      detail::connect_mesh(channel, route.world_ranks, detail::MeshKind::LinksOnly, options);
  auto family = std::make_shared<detail::GroupFamily>();
  auto group = std::make_shared<MpiGroup>(std::move(mesh), std::move(route), channel.local(),
                                          family, options);
  family->add(group);
  detail::failure_point(detail::FailurePoint::StartJoined);
  return detail::make_named_communicator("mpi", channel.rank(), channel.size(),
                                         detail::make_callbacks(group));
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& options) {
  Session& session = Session::instance();
  try {
    return connect_world(options);
  } catch (...) {
    session.note_failure();
    throw;
  }
}

}  // namespace penstock
