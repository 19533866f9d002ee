// A group made of a host framework's collectives. Every call starts with an all_gather of the
// arguments, so that all ranks judge them alike; whatever all ranks get anyhow rides along with it.

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/agreement.hpp"
#include "comm/copy_bytes.hpp"
#include "comm/linked_group.hpp"
#include "core/to_size.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::to_size;

using detail::CallArguments;
using detail::Collective;
using detail::copy_bytes;
using Bytes = CommCallbacks::Bytes;

/// The callbacks of one group, and whether it still lives.
class CallbackGroup {
 public:
  explicit CallbackGroup(CommCallbacks callbacks) : callbacks_(std::move(callbacks)) {}

  const CommCallbacks& callbacks() const { return callbacks_; }

  void check_alive(std::string_view function) {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(ErrorCode::PeerFailed, fmt::format("{}: {}", function, *failure_));
  }

  /// Runs one callback. Whatever it throws ends the group.
  template <typename Callback, typename... Args>
  auto call(std::string_view function, const Callback& callback, const Args&... args) {
    check_alive(function);
    try {
      return callback(args...);
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("a callback threw an exception of unknown type");
    }
    check_alive(function);
    throw Error(ErrorCode::Internal, "CallbackGroup::call: a failed group is alive");
  }

  /// Ends the group with an answer that cannot be right.
  [[noreturn]] void refuse_answer(std::string_view function, std::string_view what) {
    fail(fmt::format("a callback answered with {}", what));
    check_alive(function);
    throw Error(ErrorCode::Internal, "CallbackGroup::refuse_answer: a failed group is alive");
  }

  void add_part(const std::shared_ptr<CallbackGroup>& part) {
    const std::lock_guard lock(mutex_);
    parts_.push_back(part);
  }

  void abort(int rank, std::string_view cause) {
    fail(fmt::format("rank {} failed: {}", rank, cause));
    std::vector<std::weak_ptr<CallbackGroup>> parts;
    {
      const std::lock_guard lock(mutex_);
      parts = parts_;
    }
    if (callbacks_.abort) callbacks_.abort(cause);
    for (const auto& part : parts) {
      if (const auto group = part.lock()) group->abort(rank, cause);
    }
  }

 private:
  void fail(std::string what) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(what);
  }

  const CommCallbacks callbacks_;
  std::mutex mutex_;
  std::optional<std::string> failure_;  ///< The first one.
  std::vector<std::weak_ptr<CallbackGroup>> parts_;
};

/// What all ranks said in the round that every call starts with.
struct Round {
  std::vector<Bytes> messages;
  std::vector<CallArguments> calls;
  std::vector<std::span<const std::byte>> payloads;  ///< Inside `messages`.
};

Bytes make_message(const CallArguments& call, std::span<const std::byte> payload) {
  const Bytes encoded = detail::encode_call(call);
  const std::uint64_t count = encoded.size();
  Bytes message(sizeof(count) + encoded.size() + payload.size());
  std::memcpy(message.data(), &count, sizeof(count));
  copy_bytes(encoded, message.data() + sizeof(count));
  copy_bytes(payload, message.data() + sizeof(count) + encoded.size());
  return message;
}

/// Adds one rank's message to the round; false if it is malformed.
bool read_message(std::span<const std::byte> message, Round& round) {
  std::uint64_t count = 0;
  if (message.size() < sizeof(count)) return false;
  std::memcpy(&count, message.data(), sizeof(count));
  const auto rest = message.subspan(sizeof(count));
  if (count > rest.size()) return false;
  round.calls.push_back(detail::decode_call(rest.first(to_size(static_cast<std::int64_t>(count)))));
  round.payloads.push_back(rest.subspan(to_size(static_cast<std::int64_t>(count))));
  return true;
}

class CallbackCommunicator final : public Communicator {
 public:
  CallbackCommunicator(std::string_view engine, int rank, int size,
                       std::shared_ptr<CallbackGroup> group)
      : engine_(engine),
        rank_(rank),
        size_(size),
        group_(std::move(group)) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  std::string_view engine() const noexcept override { return engine_; }

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                  StreamRef /*stream*/) override {
    const Round round = agree(detail::describe_all_gather(size_, in.size(), out.size()), in);
    check_payloads(Collective::AllGather, round, in.size());
    for (std::size_t r = 0; r < round.payloads.size(); ++r) {
      copy_bytes(round.payloads[r], out.data() + r * in.size());
    }
  }

  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, std::size_t block_bytes,
                  StreamRef /*stream*/) override {
    const auto call = detail::describe_all_to_all(size_, in.size(), out.size(), block_bytes);
    const std::vector<std::int64_t> sizes(to_size(size_), static_cast<std::int64_t>(block_bytes));
    const auto blocks = exchange(call, in, sizes, sizes);
    for (std::size_t r = 0; r < blocks.size(); ++r) {
      copy_bytes(blocks[r], out.data() + r * block_bytes);
    }
  }

  void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                    std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                    StreamRef /*stream*/) override {
    const auto call =
        detail::describe_all_to_all_v(size_, in.size(), in_bytes, out.size(), out_bytes);
    std::byte* to = out.data();
    for (const Bytes& block : exchange(call, in, in_bytes, out_bytes)) {
      copy_bytes(block, to);
      to += block.size();
    }
  }

  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                      StreamRef /*stream*/) override {
    const auto call = detail::describe_reduce_scatter(size_, in.size(), out.size(), dtype);
    const std::vector<std::int64_t> sizes(to_size(size_), static_cast<std::int64_t>(out.size()));
    const auto received = exchange(call, in, sizes, sizes);
    std::vector<const std::byte*> blocks;
    for (const Bytes& block : received) blocks.push_back(block.data());
    detail::sum_blocks(blocks, out, dtype);
  }

  void broadcast(std::span<std::byte> data, int root, StreamRef /*stream*/) override {
    const auto call = detail::describe_broadcast(size_, data.size(), root);
    const auto payload = rank_ == root ? data : std::span<std::byte>();
    const Round round = agree(call, payload);
    const auto received = round.payloads[to_size(root)];
    if (received.size() != data.size()) refuse(Collective::Broadcast, "data of another size");
    copy_bytes(received, data.data());
  }

  void barrier() override {
    agree({.collective = Collective::Barrier}, {});
    if (group_->callbacks().barrier) group_->call("barrier", group_->callbacks().barrier);
  }

  std::vector<Bytes> all_gather_object(std::span<const std::byte> mine) override {
    const Round round = agree({.collective = Collective::AllGatherObject}, mine);
    std::vector<Bytes> all;
    for (const auto payload : round.payloads) all.emplace_back(payload.begin(), payload.end());
    return all;
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    auto call = detail::describe_split(color, key);
    const Round round = agree(call, {});
    const auto groups = detail::split_groups(round.calls);
    const auto& make = group_->callbacks().split;
    if (!make) {
      throw Error(ErrorCode::Unsupported, "split: the callbacks of this group have no `split`");
    }
    int mine = -1;
    std::ptrdiff_t place = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto found = std::find(groups[g].begin(), groups[g].end(), rank_);
      if (found == groups[g].end()) continue;
      mine = static_cast<int>(g);
      place = found - groups[g].begin();
    }
    auto part = std::make_shared<CallbackGroup>(group_->call("split", make, groups, mine));
    if (mine < 0) return nullptr;
    if (!part->callbacks().all_gather) refuse(Collective::Split, "no all_gather");
    group_->add_part(part);
    return std::make_unique<CallbackCommunicator>(engine_, static_cast<int>(place),
                                                  static_cast<int>(groups[to_size(mine)].size()),
                                                  std::move(part));
  }

  void abort(std::string_view cause) noexcept override {
    try {
      group_->abort(rank_, cause);
    } catch (...) {
      // Out of memory on the way out. The others find out when this rank leaves.
      return;
    }
  }

 private:
  [[noreturn]] void refuse(Collective collective, std::string_view what) {
    group_->refuse_answer(to_string(collective), what);
  }

  /// The round that starts every call: all ranks learn all arguments, and raise InvalidArgument
  /// together if they do not fit.
  Round agree(const CallArguments& call, std::span<const std::byte> payload) {
    const std::string_view function = to_string(call.collective);
    Round round;
    const Bytes message = make_message(call, payload);
    round.messages =
        group_->call(function, group_->callbacks().all_gather, std::span<const std::byte>(message));
    if (round.messages.size() != to_size(size_)) {
      refuse(call.collective,
             fmt::format("{} byte strings for {} ranks", round.messages.size(), size_));
    }
    for (const Bytes& received : round.messages) {
      if (!read_message(received, round)) refuse(call.collective, "a malformed message");
    }
    if (const auto problem = detail::find_disagreement(round.calls)) {
      throw Error(ErrorCode::InvalidArgument, *problem);
    }
    return round;
  }

  void check_payloads(Collective collective, const Round& round, std::size_t bytes) {
    for (const auto payload : round.payloads) {
      if (payload.size() != bytes) refuse(collective, "data of another size");
    }
  }

  /// Agrees on `call` and exchanges the blocks of `in`; block r of the answer comes from rank r.
  std::vector<Bytes> exchange(const CallArguments& call, std::span<const std::byte> in,
                              std::span<const std::int64_t> in_bytes,
                              std::span<const std::int64_t> out_bytes) {
    const auto& all_to_all = group_->callbacks().all_to_all;
    // Without all_to_all everybody gets everything, and picks.
    const Round round = agree(call, all_to_all ? std::span<const std::byte>() : in);
    std::vector<Bytes> received;
    if (all_to_all) {
      received = group_->call(to_string(call.collective), all_to_all, cut(in, in_bytes));
    } else {
      received = pick(call, round, out_bytes);
    }
    bool has_expected_sizes = received.size() == to_size(size_);
    for (std::size_t r = 0; has_expected_sizes && r < received.size(); ++r) {
      has_expected_sizes = received[r].size() == to_size(out_bytes[r]);
    }
    if (!has_expected_sizes) refuse(call.collective, "blocks of other sizes");
    return received;
  }

  static std::vector<Bytes> cut(std::span<const std::byte> in,
                                std::span<const std::int64_t> sizes) {
    std::vector<Bytes> blocks;
    for (const std::int64_t size : sizes) {
      const auto block = in.first(to_size(size));
      blocks.emplace_back(block.begin(), block.end());
      in = in.subspan(to_size(size));
    }
    return blocks;
  }

  std::vector<Bytes> pick(const CallArguments& call, const Round& round,
                          std::span<const std::int64_t> out_bytes) {
    std::vector<Bytes> blocks;
    for (std::size_t r = 0; r < round.payloads.size(); ++r) {
      const auto& sizes = round.calls[r].in_bytes;
      std::int64_t start = rank_ * out_bytes[r];  // equal blocks, unless there are sizes
      if (!sizes.empty()) start = 0;
      for (std::size_t to = 0; to < sizes.size() && to < to_size(rank_); ++to) start += sizes[to];
      const auto payload = round.payloads[r];
      if (payload.size() < to_size(start + out_bytes[r])) {
        refuse(call.collective, "data of another size");
      }
      const auto block = payload.subspan(to_size(start), to_size(out_bytes[r]));
      blocks.emplace_back(block.begin(), block.end());
    }
    return blocks;
  }

  const std::string_view engine_;  ///< A literal.
  const int rank_;
  const int size_;
  const std::shared_ptr<CallbackGroup> group_;
};

}  // namespace

namespace detail {

std::unique_ptr<Communicator> make_named_communicator(std::string_view engine, int rank, int size,
                                                      CommCallbacks callbacks) {
  return std::make_unique<CallbackCommunicator>(
      engine, rank, size, std::make_shared<CallbackGroup>(std::move(callbacks)));
}

}  // namespace detail

std::unique_ptr<Communicator> make_callback_communicator(int rank, int size,
                                                         CommCallbacks callbacks) {
  expects(
      size >= 1 && rank >= 0 && rank < size,
      fmt::format("make_callback_communicator: rank {} of {}, must be in [0, size)", rank, size));
  expects(static_cast<bool>(callbacks.all_gather),
          "make_callback_communicator: all_gather is empty, must be given");
  return detail::make_named_communicator("callbacks", rank, size, std::move(callbacks));
}

}  // namespace penstock
