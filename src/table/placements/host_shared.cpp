#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"
#include "table/lifecycle/load_rows.hpp"
#include "table/placements/choose_backing.hpp"
#include "table/placements/place_shard.hpp"
#include "table/placements/shared_backing.hpp"
#include "table/sharing/fd_handover.hpp"

namespace penstock::detail {
namespace {

/// What the creator tells the others of its choice.
struct ChosenBacking {
  HostBacking backing = HostBacking::Memfd;
  bool has_others = false;  ///< Another one can be tried if this one cannot be had.
  std::string reason;

  /// "hugetlb others reason ..." or "hugetlb last reason ...".
  std::string encode() const {
    return fmt::format("{} {} {}", to_string(backing), has_others ? "others" : "last", reason);
  }

  static ChosenBacking decode(const std::string& text) {
    const auto first = text.find(' ');
    const auto second = text.find(' ', first + 1);
    const auto backing = parse_host_backing(text.substr(0, first));
    if (!backing || second == std::string::npos) {
      throw Error(ErrorCode::Internal, "host_shared: the creator's choice cannot be read: " + text);
    }
    return {.backing = *backing,
            .has_others = text.substr(first + 1, second - first - 1) == "others",
            .reason = text.substr(second + 1)};
  }
};

/// Whether another backing may succeed where one failed in this way. Equal on all ranks.
bool may_try_another_backing(const StageError& error) {
  switch (error.cause()) {
    case ErrorCode::Unsupported:
    case ErrorCode::OutOfMemory:
    case ErrorCode::System:
    case ErrorCode::Timeout: return true;
    default: return false;  // PeerFailed above all: a rank that is gone is no matter of the memory
  }
}

/// What opening a shared shard goes through. The creator (rank 0) chooses what the memory is made of,
/// makes, fills and seals it; everybody, the creator too, reads it through a read-only mapping.
/// Whatever stage ends it, the destructor leaves nothing behind: there is no path, and the memory goes
/// with its last mapping and descriptor.
class SharedShardOpening {
 public:
  SharedShardOpening(const ShardRequest& request, StageRunner& stages)
      : request_(request),
        stages_(stages),
        bytes_(static_cast<std::size_t>(request.bytes())) {}

  /// Takes the first backing that every rank can have. Nothing is loaded before.
  void take_memory() {
    for (;;) {
      create();
      try {
        reserve();
        map();
        return;
      } catch (const StageError& error) {
        if (!chosen_.has_others || !may_try_another_backing(error)) throw;
        give_up(to_string(chosen_.backing), error.what());
      }
    }
  }

  void load() {
    stages_.run(Stage::Load, [&](const StopFlag& stop) {
      if (stages_.is_creator()) {
        load_rows(*request_.rows, request_.range(), memory_->writable(), stop);
      }
      return std::string();
    });
  }

  void seal() {
    stages_.run(Stage::Seal, [&](const StopFlag&) {
      if (stages_.is_creator()) memory_->seal();
      return std::string();
    });
  }

  void pin() {
    stages_.run(Stage::Pin, [&](const StopFlag& stop) {
      memory_->pin(stop);
      return std::string();
    });
  }

  PlacedShard placed() const {
    PlacedShard result;
    result.view = record_view(request_.bounds, memory_->data());
    result.memory = memory_;
    result.backing = memory_->description();
    result.backing_choice = chosen_.reason;
    result.resident_bytes = request_.bytes();
    result.shared_bytes = stages_.size() > 1 ? request_.bytes() : 0;
    return result;
  }

 private:
  /// Tells everybody what the memory is made of.
  void create() {
    const auto results = stages_.run(Stage::Create, [&](const StopFlag& stop) {
      if (!stages_.is_creator()) return std::string();
      if (!choice_) {
        choice_ = choose_backing(request_.backing, request_.device, request_.bytes(), stop);
      }
      return create_first().encode();
    });
    chosen_ = ChosenBacking::decode(results.front());
  }

  /// Makes memory of the first backing that can be had of those that have not been tried.
  ChosenBacking create_first() {
    for (;;) {
      const HostBacking backing = choice_->order.front();
      choice_->order.erase(choice_->order.begin());
      const bool has_others = !choice_->order.empty();
      try {
        memory_ = make_shared_backing(backing, request_.device, bytes_);
        memory_->create();
        return {.backing = backing, .has_others = has_others, .reason = choice_->reason};
      } catch (const Error& error) {
        if (!has_others) throw;
        give_up(to_string(backing), error.what());
      }
    }
  }

  void reserve() {
    const auto addresses = stages_.run(Stage::Reserve, [&](const StopFlag& stop) {
      if (!stages_.is_creator()) return std::string();
      memory_->reserve(stop);
      if (stages_.size() == 1) return std::string();
      server_.emplace(memory_->descriptors());
      return server_->address();
    });
    address_ = addresses.front();
  }

  void map() {
    stages_.run(Stage::Map, [&](const StopFlag& stop) {
      if (stages_.is_creator()) {
        memory_->map({}, stop);
      } else {
        memory_ = make_shared_backing(chosen_.backing, request_.device, bytes_);
        memory_->map(receive_fds(address_, stop), stop);
      }
      return std::string();
    });
    server_.reset();  // everybody has the descriptors
  }

  void give_up(std::string_view backing, const char* why) {
    memory_.reset();
    server_.reset();
    log(LogLevel::Info, fmt::format("host_shared: not of {}: {}", backing, why));
    if (choice_) choice_->reason += fmt::format("; not {}: {}", backing, why);
  }

  const ShardRequest& request_;
  StageRunner& stages_;
  std::size_t bytes_;
  std::optional<BackingChoice> choice_;  ///< Of the creator: what is left to try.
  ChosenBacking chosen_;
  std::string address_;
  std::shared_ptr<SharedBacking> memory_;
  std::optional<FdServer> server_;
};

}  // namespace

PlacedShard place_host_shared(const ShardRequest& request, StageRunner& stages) {
  SharedShardOpening opening(request, stages);
  opening.take_memory();
  opening.load();
  opening.seal();
  opening.pin();
  return opening.placed();
}

}  // namespace penstock::detail
