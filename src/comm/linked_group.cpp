#include "comm/linked_group.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "core/to_size.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

/// Lets the ranks of a group connect once more, for a part of it.
class GroupChannel final : public StartupChannel {
 public:
  explicit GroupChannel(LinkedGroup& group) : group_(group) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  SocketAddress local() const override { return group_.local(); }

  std::vector<Bytes> all_gather(std::span<const std::byte> mine) override {
    return group_.all_gather(mine);
  }

  void add_to(std::vector<pollfd>& waiting) const override { group_.links().add_to(waiting); }

  void check() override {
    group_.check();
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && group_.links().is_gone(r)) group_.lose(r);
    }
  }

 private:
  LinkedGroup& group_;
};

}  // namespace

void GroupFamily::add(const std::shared_ptr<LinkedGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
  groups_.push_back(group);
}

void GroupFamily::fail(int world_rank, const std::string& cause) noexcept {
  std::vector<std::shared_ptr<LinkedGroup>> groups;  // released after the lock
  const std::lock_guard lock(mutex_);
  if (first_failure_.empty()) {
    first_failure_ = fmt::format("rank {} of the whole group failed: {}", world_rank, cause);
  }
  for (const auto& weak : groups_) {
    if (auto group = weak.lock()) groups.push_back(std::move(group));
  }
  for (const auto& group : groups) group->hear_of(world_rank, cause);
}

void GroupFamily::hear_reason(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (first_failure_.empty()) first_failure_ = reason;
}

std::string GroupFamily::first_failure() const noexcept {
  const std::lock_guard lock(mutex_);
  return first_failure_;
}

LinkedGroup::LinkedGroup(int rank, std::vector<UniqueFd> links, std::vector<int> world_ranks,
                         const SocketAddress& local, std::shared_ptr<GroupFamily> family,
                         const CommOptions& options)
    : family_(std::move(family)),
      links_(rank, std::move(links), std::move(world_ranks)),
      local_(local),
      options_(options) {}

LinkedGroup::~LinkedGroup() {
  links_.leave(num_calls_, family_->first_failure());
}

std::vector<LinkedGroup::Bytes> LinkedGroup::all_gather(std::span<const std::byte> mine) {
  return exchange(Outgoing(to_size(size()), mine));
}

std::vector<LinkedGroup::Bytes> LinkedGroup::all_to_all(const std::vector<Bytes>& for_each_rank) {
  return exchange({for_each_rank.begin(), for_each_rank.end()});
}

std::vector<LinkedGroup::Bytes> LinkedGroup::exchange(const Outgoing& out) {
  try {
    check();
    std::vector<Bytes> in = transfer(out);
    ++num_calls_;
    const auto mine = out[to_size(rank())];
    in[to_size(rank())].assign(mine.begin(), mine.end());
    return in;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    abort(error.what());  // out of memory: the others must not wait for this rank
    throw;
  }
}

std::shared_ptr<LinkedGroup> LinkedGroup::split(const std::vector<std::vector<int>>& groups,
                                                int mine) {
  const std::vector<int> members = mine < 0 ? std::vector<int>() : groups[to_size(mine)];
  GroupChannel channel(*this);
  try {
    prepare_split(groups.size());
    Mesh mesh = connect_mesh(channel, members, mesh_kind(), options_);
    if (mine < 0) return nullptr;
    std::vector<int> world_ranks;
    for (const int r : members) world_ranks.push_back(links_.world_ranks()[to_size(r)]);
    const auto place = std::ranges::find(members, rank()) - members.begin();
    auto part = make_part(std::move(mesh), mine, static_cast<int>(place), std::move(world_ranks));
    family_->add(part);
    return part;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::PeerFailed) abort(error.what());
    throw;
  } catch (const std::exception& error) {
    abort(error.what());
    throw;
  }
}

void LinkedGroup::abort(std::string_view cause) noexcept {
  fail({.rank = rank(), .calls = num_calls_, .is_departure = false, .cause = std::string(cause)});
}

void LinkedGroup::hear_of(int world_rank, const std::string& cause) noexcept {
  const auto& ranks = links_.world_ranks();
  const auto found = std::ranges::find(ranks, world_rank);
  if (found == ranks.end()) return;
  links_.fail({.rank = static_cast<int>(found - ranks.begin()),
               .calls = num_calls_,
               .is_departure = false,
               .cause = cause});
}

void LinkedGroup::check() {
  links_.read_news();
  if (const auto failure = links_.failure(num_calls_)) fail_and_raise(*failure);
}

void LinkedGroup::lose(int peer) {
  links_.await_last_words(peer);
  const auto parting = links_.parting(peer, num_calls_);
  // Unless something earlier is known: then that is the cause.
  links_.fail(parting);
  fail_and_raise(links_.failure(num_calls_).value_or(parting));
}

void LinkedGroup::give_up(int peer) {
  fail_and_raise({.rank = peer,
                  .calls = num_calls_,
                  .is_departure = false,
                  .cause = fmt::format("did not answer within {} ms", options_.deadline.count())});
}

void LinkedGroup::fail(const PeerLinks::Failure& failure) noexcept {
  links_.fail(failure);
  if (failure.is_departure) return family_->hear_reason(failure.reason());
  family_->fail(links_.world_ranks()[to_size(failure.rank)], failure.cause);
}

void LinkedGroup::fail_and_raise(const PeerLinks::Failure& failure) {
  fail(failure);
  links_.raise(failure);
}

CommCallbacks make_callbacks(const std::shared_ptr<LinkedGroup>& group) {
  using Bytes = CommCallbacks::Bytes;
  return {
      .all_gather = [group](std::span<const std::byte> mine) { return group->all_gather(mine); },
      .all_to_all = [group](const std::vector<Bytes>& blocks) { return group->all_to_all(blocks); },
      .barrier = {},
      .abort = [group](std::string_view cause) { group->abort(cause); },
      .split =
          [group](const std::vector<std::vector<int>>& groups, int mine) {
            const auto part = group->split(groups, mine);
            return part ? make_callbacks(part) : CommCallbacks{};
          },
  };
}

}  // namespace penstock::detail
