#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "comm/startup.hpp"
#include "core/to_size.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

using Bytes = StartupChannel::Bytes;

constexpr std::uint64_t kMagic = 0x314B434F54534E50;        // "PNSTOCK1"
constexpr std::uint64_t kAbsentMagic = 0x31544E4553424150;  // "PABSENT1": `rank` will not come
// Addresses and tokens of a thousand ranks are far smaller; more is not ours.
constexpr std::uint64_t kMaxFrameBytes = 64ULL << 20;

struct StarHello {
  std::uint64_t magic = kMagic;
  std::int32_t rank = 0;
  std::int32_t size = 0;
};

/// Before every message of the star.
struct FrameHeader {
  std::uint64_t bytes = 0;
  std::int32_t is_error = 0;  ///< The message is an error text, for all to throw.
  std::int32_t code = 0;      ///< ErrorCode of that error.
};

/// A connection of the star, and the frame that is coming in.
class Wire {
 public:
  Wire() = default;
  explicit Wire(UniqueFd socket) : socket_(std::move(socket)) {}

  int get() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }

  /// Takes what has arrived. False if the other end is gone and the frame not complete.
  bool read() {
    while (!is_complete()) {
      const bool has_header = header_have_ == sizeof(header_);
      const auto rest = has_header
                            ? std::span(payload_).subspan(payload_have_)
                            : std::as_writable_bytes(std::span(&header_, 1)).subspan(header_have_);
      const Transfer transfer = receive_some(get(), rest);
      if (transfer.is_closed) return false;
      if (transfer.bytes == 0) return true;
      if (has_header) {
        payload_have_ += transfer.bytes;
        continue;
      }
      header_have_ += transfer.bytes;
      if (header_have_ == sizeof(header_)) {
        if (header_.bytes > kMaxFrameBytes) return false;
        payload_.resize(header_.bytes);
      }
    }
    return true;
  }

  bool is_complete() const {
    return header_have_ == sizeof(header_) && payload_have_ == payload_.size();
  }

  /// The complete frame; throws if it is an error. The next one may come.
  Bytes take() {
    const bool is_error = header_.is_error != 0;
    const auto code = static_cast<ErrorCode>(header_.code);
    header_have_ = 0;
    payload_have_ = 0;
    Bytes payload = std::exchange(payload_, {});
    if (!is_error) return payload;
    throw Error(code, std::string(reinterpret_cast<const char*>(payload.data()), payload.size()));
  }

  /// False if the other end is gone or takes nothing until the deadline.
  bool send(const FrameHeader& header, std::span<const std::byte> payload,
            Deadline deadline) const {
    return send_all(std::as_bytes(std::span(&header, 1)), deadline) && send_all(payload, deadline);
  }

 private:
  bool send_all(std::span<const std::byte> bytes, Deadline deadline) const {
    while (!bytes.empty()) {
      const Transfer transfer = send_some(get(), bytes);
      if (transfer.is_closed) return false;
      bytes = bytes.subspan(transfer.bytes);
      if (bytes.empty() || transfer.bytes > 0) continue;
      pollfd waiting{.fd = get(), .events = POLLOUT, .revents = 0};
      if (::poll(&waiting, 1, poll_timeout(deadline)) == 0) return false;
    }
    return true;
  }

  UniqueFd socket_;
  FrameHeader header_{};
  std::size_t header_have_ = 0;
  Bytes payload_;
  std::size_t payload_have_ = 0;
};

void send_error(const Wire& wire, ErrorCode code, std::string_view text) {
  // A second is plenty for a small frame; a rank that cannot take it is past help.
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  (void)wire.send({.bytes = text.size(), .is_error = 1, .code = static_cast<std::int32_t>(code)},
                  std::as_bytes(std::span(text)), deadline);
}

Bytes pack(const std::vector<Bytes>& parts) {
  Bytes packed;
  for (const Bytes& part : parts) {
    const std::uint64_t count = part.size();
    const auto bytes = std::as_bytes(std::span(&count, 1));
    packed.insert(packed.end(), bytes.begin(), bytes.end());
    packed.insert(packed.end(), part.begin(), part.end());
  }
  return packed;
}

std::vector<Bytes> unpack(std::span<const std::byte> packed, int size) {
  std::vector<Bytes> parts;
  for (int r = 0; r < size; ++r) {
    std::uint64_t count = 0;
    if (packed.size() < sizeof(count)) break;
    std::memcpy(&count, packed.data(), sizeof(count));
    packed = packed.subspan(sizeof(count));
    if (count > packed.size()) break;
    parts.emplace_back(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(count));
    packed = packed.subspan(static_cast<std::size_t>(count));
  }
  if (parts.size() != to_size(size)) {
    throw Error(ErrorCode::PeerFailed, "start-up: rank 0 sent a malformed answer");
  }
  return parts;
}

class Hub final : public StartupChannel {
 public:
  Hub(int size, Listener listener, const CommOptions& options)
      : options_(options),
        listener_(std::move(listener)),
        wires_(to_size(size)) {
    admit_all();
  }

  int rank() const override { return 0; }
  int size() const override { return static_cast<int>(wires_.size()); }

  SocketAddress local() const override {
    const SocketAddress mine = listener_.address();
    // Listening at every interface, rank 0 names the one that the others have found it at.
    if (mine.family() == AF_UNIX || size() == 1) return mine;
    return SocketAddress::of(wires_[1].get());
  }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override {
    const Deadline deadline = deadline_from_now();
    const auto is_waiting = [](const Wire& wire) { return wire && !wire.is_complete(); };
    while (read_all()) {
      check();
      std::vector<pollfd> waiting;
      add_to(waiting);  // also those that have sent theirs: they can die as well
      for (const Wire& wire : wires_) {
        if (is_waiting(wire)) waiting.push_back({.fd = wire.get(), .events = POLLIN, .revents = 0});
      }
      if (::poll(waiting.data(), waiting.size(), poll_timeout(deadline)) == 0) {
        fail_late([&](int r) { return is_waiting(wires_[to_size(r)]); });
      }
    }
    std::vector<Bytes> parts{Bytes(mine.begin(), mine.end())};
    for (int r = 1; r < size(); ++r) parts.push_back(wires_[to_size(r)].take());
    const Bytes packed = pack(parts);
    for (int r = 1; r < size(); ++r) {
      if (!wires_[to_size(r)].send({.bytes = packed.size()}, packed, deadline)) {
        fail_all(ErrorCode::PeerFailed, describe_loss(r));
      }
    }
    return parts;
  }

  void add_to(std::vector<pollfd>& waiting) const override {
    for (const Wire& wire : wires_) {
      // Not POLLIN: a rank may already have sent what it has for the next all_gather.
      if (wire) waiting.push_back({.fd = wire.get(), .events = POLLRDHUP, .revents = 0});
    }
  }

  void check() override {
    std::vector<pollfd> waiting;
    add_to(waiting);
    if (waiting.empty() || ::poll(waiting.data(), waiting.size(), 0) <= 0) return;
    std::size_t i = 0;
    for (int r = 1; r < size(); ++r, ++i) {
      if (waiting[i].revents != 0) fail_all(ErrorCode::PeerFailed, describe_loss(r));
    }
  }

 private:
  struct Caller {
    UniqueFd socket;
    Bytes received;
  };

  Deadline deadline_from_now() const {
    return std::chrono::steady_clock::now() + options_.start_deadline;
  }

  /// Takes what has arrived. True if more must come.
  bool read_all() {
    bool is_waiting = false;
    for (int r = 1; r < size(); ++r) {
      Wire& wire = wires_[to_size(r)];
      if (!wire.read()) fail_all(ErrorCode::PeerFailed, describe_loss(r));
      is_waiting = is_waiting || !wire.is_complete();
    }
    return is_waiting;
  }

  static std::string describe_loss(int rank) {
    return fmt::format("start-up: rank {} failed: its process ended or its connection broke", rank);
  }

  /// Accepts connections until every rank has said hello.
  void admit_all() {
    const Deadline deadline = deadline_from_now();
    const auto is_missing = [&](int r) { return !wires_[to_size(r)]; };
    const auto is_absent = [](const Wire& wire) { return !wire; };
    while (std::any_of(wires_.begin() + 1, wires_.end(), is_absent)) {
      std::vector<pollfd> waiting{{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      for (const Caller& caller : callers_) {
        waiting.push_back({.fd = caller.socket.get(), .events = POLLIN, .revents = 0});
      }
      add_to(waiting);
      if (::poll(waiting.data(), waiting.size(), poll_timeout(deadline)) == 0) {
        fail_late(is_missing);
      }
      check();
      while (UniqueFd socket = accept()) callers_.push_back({std::move(socket), {}});
      for (Caller& caller : callers_) hear(caller);
      std::erase_if(callers_, [](const Caller& caller) { return !caller.socket; });
    }
    callers_.clear();
  }

  UniqueFd accept() {
    try {
      return listener_.accept();
    } catch (const Error& error) {
      tell_all(ErrorCode::PeerFailed, fmt::format("start-up: rank 0 failed: {}", error.what()));
      throw;
    }
  }

  void hear(Caller& caller) {
    const std::size_t have = caller.received.size();
    caller.received.resize(sizeof(StarHello));
    const Transfer transfer =
        receive_some(caller.socket.get(), std::span(caller.received).subspan(have));
    caller.received.resize(have + transfer.bytes);
    if (transfer.is_closed) return caller.socket.reset();
    if (caller.received.size() < sizeof(StarHello)) return;
    StarHello hello;
    std::memcpy(&hello, caller.received.data(), sizeof(hello));
    Wire wire(std::move(caller.socket));
    if (hello.magic == kMagic) return admit(hello, std::move(wire));
    if (hello.magic == kAbsentMagic) miss(hello.rank);
    // else a stranger: sent away
  }

  /// One that had come is missed when its connection closes.
  void miss(int rank) {
    if (rank < 1 || rank >= size() || wires_[to_size(rank)]) return;
    fail_all(ErrorCode::PeerFailed, describe_absence(rank));
  }

  void admit(const StarHello& hello, Wire wire) {
    std::string problem;
    if (hello.size != size()) {
      problem = fmt::format("start-up: rank {} expects {} ranks, rank 0 expects {}", hello.rank,
                            hello.size, size());
    } else if (hello.rank < 1 || hello.rank >= size() || wires_[to_size(hello.rank)]) {
      problem = fmt::format("start-up: two processes claim to be rank {}", hello.rank);
    }
    if (!problem.empty()) {
      send_error(wire, ErrorCode::InvalidArgument, problem);
      fail_all(ErrorCode::InvalidArgument, problem);
    }
    wires_[to_size(hello.rank)] = std::move(wire);
  }

  [[noreturn]] void fail_all(ErrorCode code, const std::string& text) {
    tell_all(code, text);
    throw Error(code, text);
  }

  /// Also those that have come and not been admitted: nobody else would tell them.
  void tell_all(ErrorCode code, const std::string& text) {
    for (const Wire& wire : wires_) {
      if (wire) send_error(wire, code, text);
    }
    for (Caller& caller : callers_) {
      if (caller.socket) send_error(Wire(std::move(caller.socket)), code, text);
    }
    try {
      while (UniqueFd socket = listener_.accept()) send_error(Wire(std::move(socket)), code, text);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
      // No descriptor for them: they notice that the listener goes.
    }
  }

  template <typename IsLate>
  [[noreturn]] void fail_late(const IsLate& is_late) {
    std::vector<int> late;
    for (int r = 1; r < size(); ++r) {
      if (is_late(r)) late.push_back(r);
    }
    fail_all(ErrorCode::PeerFailed,
             fmt::format("start-up: rank {} failed: did not come within {} ms",
                         fmt::join(late, ", "), options_.start_deadline.count()));
  }

  const CommOptions options_;
  const Listener listener_;
  std::vector<Wire> wires_;      ///< Empty at 0.
  std::vector<Caller> callers_;  ///< Have not said yet who they are.
};

class Leaf final : public StartupChannel {
 public:
  Leaf(int rank, int size, const SocketAddress& hub, const CommOptions& options)
      : rank_(rank),
        size_(size),
        options_(options),
        hub_(hub),
        wire_(connect()) {
    const StarHello hello{.rank = rank, .size = size};
    // A hub that takes nothing more has sent its reason: that is read later.
    (void)send_some(wire_.get(), std::as_bytes(std::span(&hello, 1)));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  SocketAddress local() const override {
    return hub_.family() == AF_UNIX ? hub_ : SocketAddress::of(wire_.get());
  }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override {
    // A little longer than the hub, which knows who is late and tells.
    const Deadline deadline =
        std::chrono::steady_clock::now() + options_.start_deadline + std::chrono::seconds(1);
    // A hub that gave up has sent its reason before it closed: that is read below.
    const bool is_sent = wire_.send({.bytes = mine.size()}, mine, deadline);
    for (;;) {
      const bool is_open = wire_.read();
      if (wire_.is_complete()) return unpack(wire_.take(), size_);
      if (!is_open || !is_sent) fail();
      pollfd waiting{.fd = wire_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, poll_timeout(deadline)) == 0) {
        throw Error(ErrorCode::PeerFailed,
                    fmt::format("start-up: rank 0 failed: did not answer within {} ms",
                                options_.start_deadline.count()));
      }
    }
  }

  void add_to(std::vector<pollfd>& waiting) const override {
    waiting.push_back({.fd = wire_.get(), .events = POLLIN, .revents = 0});
  }

  void check() override {
    const bool is_open = wire_.read();
    if (wire_.is_complete()) wire_.take();  // out of turn: can only be an error
    if (!is_open) fail();
  }

 private:
  UniqueFd connect() const {
    try {
      return connect_to(hub_, std::chrono::steady_clock::now() + options_.start_deadline);
    } catch (const Error& error) {
      throw Error(error.code() == ErrorCode::Timeout ? ErrorCode::PeerFailed : error.code(),
                  fmt::format("start-up: rank {} cannot reach rank 0: {}", rank_, error.what()));
    }
  }

  [[noreturn]] static void fail() {
    throw Error(ErrorCode::PeerFailed,
                "start-up: rank 0 failed: its process ended or its connection broke");
  }

  const int rank_;
  const int size_;
  const CommOptions options_;
  const SocketAddress hub_;
  Wire wire_;
};

}  // namespace

std::string describe_absence(int rank) {
  return fmt::format("start-up: rank {} failed: its process ended before it came", rank);
}

bool tell_hub_of_absence(const SocketAddress& hub, int rank) {
  try {
    const UniqueFd socket = connect_to(hub, std::chrono::steady_clock::now());
    const StarHello hello{.magic = kAbsentMagic, .rank = rank, .size = 0};
    return !send_some(socket.get(), std::as_bytes(std::span(&hello, 1))).is_closed;
  } catch (const Error&) {
    return false;  // nobody listens yet, or any more
  }
}

void tell_leaf_of_absence(UniqueFd socket, int rank) {
  send_error(Wire(std::move(socket)), ErrorCode::PeerFailed, describe_absence(rank));
}

std::unique_ptr<StartupChannel> open_star_as_hub(int size, Listener listener,
                                                 const CommOptions& options) {
  return std::make_unique<Hub>(size, std::move(listener), options);
}

std::unique_ptr<StartupChannel> open_star_as_leaf(int rank, int size, const SocketAddress& hub,
                                                  const CommOptions& options) {
  return std::make_unique<Leaf>(rank, size, hub, options);
}

}  // namespace penstock::detail
