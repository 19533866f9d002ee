#include <fmt/format.h>

#include <optional>
#include <utility>

#include "table/lifecycle/load_rows.hpp"
#include "table/placements/host_region.hpp"
#include "table/placements/place_shard.hpp"
#include "table/sharing/fd_handover.hpp"
#include "table/sharing/memory_limit.hpp"
#include "table/sharing/shared_memory.hpp"

namespace penstock::detail {
namespace {

/// What opening a shared shard goes through. The creator (rank 0) makes, fills and seals the
/// memory; everybody, the creator too, reads it through a read-only mapping of a read-only
/// descriptor. Whatever stage ends it, the destructor leaves nothing behind: there is no path, and
/// the memory goes with its last mapping and descriptor.
class SharedShardOpening {
 public:
  SharedShardOpening(const ShardRequest& request, StageRunner& stages)
      : request_(request),
        stages_(stages),
        bytes_(static_cast<std::size_t>(request.bytes())) {}

  /// Gives the others the address at which the creator hands out its descriptor.
  void create() {
    const auto addresses = stages_.run(Stage::Create, [&](const StopFlag&) {
      if (!stages_.is_creator()) return std::string();
      check_memory_limit(request_.bytes());
      memory_ = SharedMemory::create(bytes_);
      if (stages_.size() == 1) return std::string();
      server_.emplace(memory_->read_only_fd());
      return server_->address();
    });
    address_ = addresses.front();
  }

  void reserve() {
    stages_.run(Stage::Reserve, [&](const StopFlag& stop) {
      if (stages_.is_creator()) {
        writable_ = Mapping::shared(memory_->fd(), bytes_, Access::ReadWrite);
        writable_.reserve(stop);
      }
      return std::string();
    });
  }

  void map() {
    stages_.run(Stage::Map, [&](const StopFlag& stop) {
      const UniqueFd fd =
          stages_.is_creator() ? memory_->read_only_fd() : receive_fd(address_, stop);
      check_shared_memory(fd.get(), bytes_);
      readable_ = Mapping::shared(fd.get(), bytes_, Access::Read);
      return std::string();
    });
    server_.reset();  // everybody has the descriptor
  }

  void load() {
    stages_.run(Stage::Load, [&](const StopFlag& stop) {
      if (stages_.is_creator()) {
        load_rows(*request_.rows, request_.range(), writable_.data(), stop);
      }
      return std::string();
    });
  }

  void seal() {
    stages_.run(Stage::Seal, [&](const StopFlag&) {
      if (stages_.is_creator()) {
        writable_.reset();  // a seal is refused while a writable mapping is left
        memory_->seal();
      }
      return std::string();
    });
  }

  void pin() {
    stages_.run(Stage::Pin, [&](const StopFlag& stop) {
      *region_ = HostRegion(std::move(readable_), request_.device, Access::Read, stop);
      return std::string();
    });
  }

  std::shared_ptr<const HostRegion> region() const { return region_; }

 private:
  const ShardRequest& request_;
  StageRunner& stages_;
  std::size_t bytes_;
  std::string address_;
  std::shared_ptr<HostRegion> region_ = std::make_shared<HostRegion>();
  std::optional<SharedMemory> memory_;
  std::optional<FdServer> server_;
  Mapping writable_;
  Mapping readable_;
};

}  // namespace

PlacedShard place_host_shared(const ShardRequest& request, StageRunner& stages) {
  SharedShardOpening opening(request, stages);
  opening.create();
  opening.reserve();
  opening.map();
  opening.load();
  opening.seal();
  opening.pin();
  const auto region = opening.region();
  region->mapping().prefault_for_reading();
  PlacedShard placed;
  placed.view = record_view(request.bounds, region->data());
  placed.memory = region;
  placed.backing = fmt::format("memfd, {}, sealed", describe_pages(region->mapping()));
  placed.resident_bytes = request.bytes();
  placed.shared_bytes = stages.size() > 1 ? request.bytes() : 0;
  return placed;
}

}  // namespace penstock::detail
