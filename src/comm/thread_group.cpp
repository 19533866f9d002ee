// Ranks as threads of one process. A call has two meetings: every rank posts its arguments and its
// pointers and waits for the last one; then each copies what it needs straight out of the others'
// buffers; then all wait until nobody reads any more.

#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/agreement.hpp"
#include "comm/copy_bytes.hpp"
#include "core/failure_point.hpp"
#include "core/to_size.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock {
namespace {

using detail::to_size;

using detail::CallArguments;
using detail::Collective;
using detail::copy_bytes;

struct Failure {
  int rank = 0;
  std::string cause;
  /// Another rank's failure, after which this one left: "rank 3 of the whole group failed: ...".
  std::string reason = {};
};

class Group;

/// What a rank shows to the others during one call.
struct Post {
  const CallArguments* call = nullptr;
  std::span<const std::byte> data = {};
  std::shared_ptr<Group> new_group = {};  ///< split: made by the first rank of each new group.
};

/// The groups that were split off one another. A rank that fails has failed in all of them.
class Family {
 public:
  void add(const std::shared_ptr<Group>& group);

  /// Records that world rank `rank` failed, and tells every group that it belongs to.
  void fail(int rank, const std::string& cause);

  /// World rank `rank` has heard of a failure, and will leave its groups for no other reason.
  void set_reason(int rank, const std::string& reason);
  std::string reason_of(int rank) const;

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Group>> groups_;
  std::vector<Failure> failures_;

  mutable std::mutex reasons_mutex_;  ///< Taken last, also under the lock of a group.
  std::map<int, std::string> reasons_;
};

class Group {
 public:
  Group(std::shared_ptr<Family> family, std::vector<int> world_ranks, const CommOptions& options)
      : family_(std::move(family)),
        world_ranks_(std::move(world_ranks)),
        options_(options),
        posts_(world_ranks_.size(), nullptr),
        has_left_(world_ranks_.size(), false) {}

  int size() const noexcept { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const { return world_ranks_[to_size(rank)]; }
  const CommOptions& options() const { return options_; }
  const std::shared_ptr<Family>& family() const { return family_; }

  /// One call of rank `rank`: waits until every rank has posted, then runs `read` on the posts of
  /// all ranks, and returns once all have done so.
  void exchange(int rank, const Post& mine,
                const std::function<void(std::span<const Post* const>)>& read);

  void leave(int rank, bool is_unwinding) noexcept;
  void abort(int rank, std::string_view cause) noexcept;

  /// World rank `world_rank` failed; nothing if it is not of this group.
  void mark_failed(int world_rank, const std::string& cause);

 private:
  using Lock = std::unique_lock<std::mutex>;

  void check_alive(int rank, Collective collective) const;
  void wait_for_others(int rank, Lock& lock, Collective collective);
  void fail_missing(Lock& lock, Collective collective);
  std::string describe(int rank) const;
  void set_failure(int rank, const std::string& cause, const std::string& reason = {});

  const std::shared_ptr<Family> family_;
  const std::vector<int> world_ranks_;
  const CommOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const Post*> posts_;  ///< Null: has not arrived at the call under way.
  std::vector<bool> has_left_;
  std::optional<Failure> failure_;  ///< The first one; the group is dead from then on.
  std::optional<std::string> disagreement_;
  std::uint64_t started_ = 0;   ///< Calls at which every rank arrived.
  std::uint64_t finished_ = 0;  ///< Calls that nobody reads from any more.
  int num_arrived_ = 0;
  int num_reading_ = 0;
};

void Family::add(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(group);
  for (const Failure& failure : failures_) group->mark_failed(failure.rank, failure.cause);
}

void Family::fail(int rank, const std::string& cause) {
  const std::lock_guard lock(mutex_);
  failures_.push_back({rank, cause});
  std::erase_if(groups_, [](const auto& group) { return group.expired(); });
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) group->mark_failed(rank, cause);
  }
}

void Family::set_reason(int rank, const std::string& reason) {
  const std::lock_guard lock(reasons_mutex_);
  reasons_.try_emplace(rank, reason);
}

std::string Family::reason_of(int rank) const {
  const std::lock_guard lock(reasons_mutex_);
  const auto found = reasons_.find(rank);
  return found == reasons_.end() ? std::string() : found->second;
}

std::string Group::describe(int rank) const {
  const int world = world_rank(rank);
  if (world == rank) return fmt::format("rank {}", rank);
  return fmt::format("rank {} ({} in the whole group)", rank, world);
}

void Group::set_failure(int rank, const std::string& cause, const std::string& reason) {
  if (!failure_) failure_ = Failure{rank, cause, reason};
  changed_.notify_all();
}

void Group::mark_failed(int world_rank, const std::string& cause) {
  const auto found = std::ranges::find(world_ranks_, world_rank);
  if (found == world_ranks_.end()) return;
  const std::lock_guard lock(mutex_);
  set_failure(static_cast<int>(found - world_ranks_.begin()), cause);
}

void Group::check_alive(int rank, Collective collective) const {
  if (!failure_) return;
  const auto& [failed, cause, reason] = *failure_;
  const std::string first = reason.empty() ? fmt::format("rank {} of the whole group failed: {}",
                                                         world_rank(failed), cause)
                                           : reason;
  family_->set_reason(world_rank(rank), first);
  const std::string what = reason.empty()
                               ? fmt::format("{} failed: {}", describe(failed), cause)
                               : fmt::format("{}; so {} left the group", reason, describe(failed));
  throw Error(ErrorCode::PeerFailed, fmt::format("{}: {}", to_string(collective), what));
}

/// The deadline has passed: the first rank that did not come is the one that failed.
void Group::fail_missing(Lock& lock, Collective collective) {
  const auto missing = std::ranges::find(posts_, nullptr);
  const int rank = static_cast<int>(missing - posts_.begin());
  const std::string cause =
      fmt::format("did not call {} within {} ms", to_string(collective), options_.deadline.count());
  set_failure(rank, cause);
  // The family takes its own lock before those of its groups.
  lock.unlock();
  family_->fail(world_rank(rank), cause);
  lock.lock();
}

void Group::wait_for_others(int rank, Lock& lock, Collective collective) {
  const std::uint64_t call = started_;
  const auto deadline = std::chrono::steady_clock::now() + options_.deadline;
  const auto is_over = [&] { return started_ != call || failure_.has_value(); };
  for (int r = 0; r < size(); ++r) {
    if (!has_left_[to_size(r)] || posts_[to_size(r)] != nullptr) continue;
    set_failure(r, "left the group", family_->reason_of(world_rank(r)));
  }
  if (!changed_.wait_until(lock, deadline, is_over)) fail_missing(lock, collective);
  // A call that has started is finished, whatever became of the group meanwhile: the others read
  // this rank's buffers.
  if (started_ == call) check_alive(rank, collective);
}

void Group::exchange(int rank, const Post& mine,
                     const std::function<void(std::span<const Post* const>)>& read) {
  const Collective collective = mine.call->collective;
  Lock lock(mutex_);
  check_alive(rank, collective);
  posts_[to_size(rank)] = &mine;
  if (++num_arrived_ == size()) {
    std::vector<const CallArguments*> calls;
    for (const Post* post : posts_) calls.push_back(post->call);
    disagreement_ = detail::find_disagreement(calls);
    num_reading_ = size();
    num_arrived_ = 0;
    ++started_;
    changed_.notify_all();
  } else {
    wait_for_others(rank, lock, collective);
  }

  const std::uint64_t call = finished_;
  const std::optional<std::string> disagreement = disagreement_;
  std::exception_ptr error;
  lock.unlock();
  if (!disagreement) {
    try {
      read(posts_);
    } catch (...) {
      error = std::current_exception();
    }
  }
  lock.lock();
  if (--num_reading_ == 0) {
    std::ranges::fill(posts_, nullptr);
    ++finished_;
    changed_.notify_all();
  } else {
    // Without a deadline: the others are inside `read`, which only copies.
    changed_.wait(lock, [&] { return finished_ != call; });
  }
  if (error) std::rethrow_exception(error);
  if (disagreement) throw Error(ErrorCode::InvalidArgument, *disagreement);
}

void Group::leave(int rank, bool is_unwinding) noexcept {
  const std::lock_guard lock(mutex_);
  has_left_[to_size(rank)] = true;
  if (num_arrived_ == 0) return;
  set_failure(rank, is_unwinding ? "left the group with an exception" : "left the group",
              family_->reason_of(world_rank(rank)));
}

void Group::abort(int rank, std::string_view cause) noexcept {
  try {
    family_->fail(world_rank(rank), std::string(cause));
  } catch (const std::bad_alloc&) {
    mark_failed(world_rank(rank), "");
  }
}

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)),
        rank_(rank),
        exceptions_(std::uncaught_exceptions()) {}
  ~ThreadCommunicator() override { group_->leave(rank_, std::uncaught_exceptions() > exceptions_); }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return group_->size(); }
  std::string_view engine() const noexcept override { return "threads"; }

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                  StreamRef /*stream*/) override {
    const auto call = detail::describe_all_gather(size(), in.size(), out.size());
    group_->exchange(rank_, {.call = &call, .data = in}, [&](auto posts) {
      for (std::size_t r = 0; r < posts.size(); ++r) {
        copy_bytes(posts[r]->data, out.data() + r * in.size());
      }
    });
  }

  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, std::size_t block_bytes,
                  StreamRef /*stream*/) override {
    const auto call = detail::describe_all_to_all(size(), in.size(), out.size(), block_bytes);
    group_->exchange(rank_, {.call = &call, .data = in}, [&](auto posts) {
      for (std::size_t r = 0; r < posts.size(); ++r) {
        copy_bytes(posts[r]->data.subspan(to_size(rank_) * block_bytes, block_bytes),
                   out.data() + r * block_bytes);
      }
    });
  }

  void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                    std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                    StreamRef /*stream*/) override {
    const auto call =
        detail::describe_all_to_all_v(size(), in.size(), in_bytes, out.size(), out_bytes);
    group_->exchange(rank_, {.call = &call, .data = in}, [&](auto posts) {
      std::byte* to = out.data();
      for (const Post* post : posts) {
        const auto& sizes = post->call->in_bytes;
        const auto start = std::accumulate(sizes.begin(), sizes.begin() + rank_, std::int64_t{0});
        const auto count = static_cast<std::size_t>(sizes[to_size(rank_)]);
        copy_bytes(post->data.subspan(static_cast<std::size_t>(start), count), to);
        to += count;
      }
    });
  }

  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                      StreamRef /*stream*/) override {
    const auto call = detail::describe_reduce_scatter(size(), in.size(), out.size(), dtype);
    group_->exchange(rank_, {.call = &call, .data = in}, [&](auto posts) {
      std::vector<const std::byte*> blocks;
      for (const Post* post : posts) {
        blocks.push_back(post->data.data() + to_size(rank_) * out.size());
      }
      detail::sum_blocks(blocks, out, dtype);
    });
  }

  void broadcast(std::span<std::byte> data, int root, StreamRef /*stream*/) override {
    const auto call = detail::describe_broadcast(size(), data.size(), root);
    group_->exchange(rank_, {.call = &call, .data = data},
                     [&](auto posts) { copy_bytes(posts[to_size(root)]->data, data.data()); });
  }

  void barrier() override {
    const CallArguments call;
    group_->exchange(rank_, {.call = &call}, [](auto) {});
  }

  std::vector<std::vector<std::byte>> all_gather_object(std::span<const std::byte> mine) override {
    const CallArguments call{.collective = Collective::AllGatherObject};
    std::vector<std::vector<std::byte>> all(to_size(size()));
    group_->exchange(rank_, {.call = &call, .data = mine}, [&](auto posts) {
      for (std::size_t r = 0; r < posts.size(); ++r) {
        all[r].assign(posts[r]->data.begin(), posts[r]->data.end());
      }
    });
    return all;
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    const auto call = detail::describe_split(color, key);
    std::vector<std::vector<int>> groups;
    group_->exchange(rank_, {.call = &call}, [&](auto posts) {
      std::vector<CallArguments> calls;
      for (const Post* post : posts) calls.push_back(*post->call);
      groups = detail::split_groups(calls);
    });
    return join(call, groups);
  }

  void abort(std::string_view cause) noexcept override { group_->abort(rank_, cause); }

 private:
  /// The first rank of each new group makes it and hands it to the others.
  std::unique_ptr<Communicator> join(const CallArguments& call,
                                     const std::vector<std::vector<int>>& groups) {
    const std::vector<int>* mine = nullptr;
    std::size_t my_place = 0;
    for (const auto& ranks : groups) {
      const auto found = std::ranges::find(ranks, rank_);
      if (found == ranks.end()) continue;
      mine = &ranks;
      my_place = static_cast<std::size_t>(found - ranks.begin());
    }
    Post post{.call = &call};
    if (mine != nullptr && my_place == 0) {
      std::vector<int> world_ranks;
      for (const int r : *mine) world_ranks.push_back(group_->world_rank(r));
      post.new_group =
          std::make_shared<Group>(group_->family(), std::move(world_ranks), group_->options());
      group_->family()->add(post.new_group);
    }
    std::shared_ptr<Group> group;
    group_->exchange(rank_, post, [&](auto posts) {
      if (mine != nullptr) group = posts[to_size((*mine)[0])]->new_group;
    });
    if (!group) return nullptr;
    return std::make_unique<ThreadCommunicator>(std::move(group), static_cast<int>(my_place));
  }

  const std::shared_ptr<Group> group_;
  const int rank_;
  const int exceptions_;
};

/// What one rank of run_thread_group ended with.
struct Outcome {
  std::exception_ptr error;
  bool is_echo = false;  ///< It only heard of another rank's failure.
};

Outcome run_rank(Communicator& comm, const std::function<void(Communicator&)>& body) {
  try {
    detail::set_failure_rank(comm.rank(), detail::RankKind::Thread);
    detail::failure_point(detail::FailurePoint::StartLaunched);
    detail::failure_point(detail::FailurePoint::StartJoined);
    body(comm);
    return {};
  } catch (const detail::Departure&) {
    return {};  // without a word: what the others see is that its communicator goes
  } catch (const Error& error) {
    comm.abort(error.what());
    return {std::current_exception(), error.code() == ErrorCode::PeerFailed};
  } catch (const std::exception& error) {
    comm.abort(error.what());
    return {std::current_exception(), false};
  } catch (...) {
    comm.abort("an exception of unknown type");
    return {std::current_exception(), false};
  }
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_group(int size, const CommOptions& options) {
  expects(size >= 1, fmt::format("make_thread_group: size is {}, must be at least 1", size));
  std::vector<int> ranks(to_size(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto family = std::make_shared<Family>();
  const auto group = std::make_shared<Group>(family, std::move(ranks), options);
  family->add(group);
  std::vector<std::unique_ptr<Communicator>> members;
  for (int r = 0; r < size; ++r) members.push_back(std::make_unique<ThreadCommunicator>(group, r));
  return members;
}

std::unique_ptr<Communicator> make_solo_communicator() {
  return std::move(make_thread_group(1).front());
}

void run_thread_group(int size, const std::function<void(Communicator&)>& body,
                      const CommOptions& options) {
  auto members = make_thread_group(size, options);
  const int threads_each = std::max(1, parallel_threads() / size);
  std::vector<Outcome> outcomes(members.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < members.size(); ++r) {
      try {
        threads.emplace_back([&, r] {
          set_parallel_threads(threads_each);
          outcomes[r] = run_rank(*members[r], body);
          members[r].reset();
        });
      } catch (const std::system_error& error) {
        // Those that run must not wait for it; nor for the ranks after it, which are not started.
        const std::string cause =
            fmt::format("run_thread_group: cannot start rank {}: {}", r, error.what());
        members[r]->abort(cause);
        outcomes[r].error = std::make_exception_ptr(Error(ErrorCode::System, cause));
        break;
      }
    }
  }
  for (const bool may_be_echo : {false, true}) {
    for (const Outcome& outcome : outcomes) {
      if (outcome.error && outcome.is_echo == may_be_echo) std::rethrow_exception(outcome.error);
    }
  }
}

}  // namespace penstock
