#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/virtual_memory.hpp"
#include "penstock/core/error.hpp"
#include "table/placements/load_rows_cuda.hpp"
#include "table/placements/placements_cuda.hpp"
#include "table/sharing/fd_handover.hpp"

namespace penstock::detail {
namespace {

/// What opening a peer shard goes through. Every rank makes, fills and hands out one part of the
/// rows, and maps the parts of the others.
class PeerShardOpening {
 public:
  PeerShardOpening(const ShardRequest& request, StageRunner& stages)
      : request_(request),
        stages_(stages),
        record_bytes_(row_record_bytes(request.bounds.head_dim)),
        parts_(std::make_shared<std::vector<cuda::VirtualMemory>>(
            static_cast<std::size_t>(stages.size()))) {
    const std::int64_t rows = request.bounds.row_end - request.bounds.row_begin;
    rows_per_part_ = std::max<std::int64_t>(1, (rows + stages.size() - 1) / stages.size());
  }

  /// Gives every rank the addresses at which the others hand out their parts.
  void create() {
    addresses_ = stages_.run(Stage::Create, [&](const StopFlag&) {
      if (stages_.size() > TableView::kMaxParts) {
        throw Error(ErrorCode::Unsupported,
                    fmt::format("placement peer spreads a shard over at most {} GPUs, found {}; "
                                "more column shards or host_shared would work",
                                TableView::kMaxParts, stages_.size()));
      }
      own_part() = cuda::VirtualMemory::create(request_.device, part_bytes());
      server_.emplace(UniqueFd(own_part().export_fd()));
      return server_->address();
    });
  }

  void map() {
    stages_.run(Stage::Map, [&](const StopFlag& stop) {
      for (int rank = 0; rank < stages_.size(); ++rank) {
        if (rank != stages_.rank()) map_part(rank, stop);
      }
      return std::string();
    });
    server_.reset();  // everybody has the descriptors
  }

  void load() {
    stages_.run(Stage::Load, [&](const StopFlag& stop) {
      load_rows_cuda(*request_.rows, own_range(), own_part().data(), request_.device, stop);
      return std::string();
    });
  }

  PlacedShard placed() const {
    PlacedShard result;
    TableView& view = result.view = request_.bounds;
    view.num_parts = stages_.size();
    view.rows_per_part = rows_per_part_;
    view.value_stride = view.scale_stride = record_bytes_;
    for (std::size_t part = 0; part < parts_->size(); ++part) {
      view.values[part] = (*parts_)[part].data();
      view.scales[part] = view.values[part] + request_.bounds.head_dim;
    }
    result.backing =
        fmt::format("{} GPUs, this rank's rows on {}", stages_.size(), to_string(request_.device));
    const RowRange mine = own_range();
    result.resident_bytes = (mine.end - mine.begin) * record_bytes_;
    result.memory = parts_;
    return result;
  }

 private:
  cuda::VirtualMemory& own_part() { return (*parts_)[static_cast<std::size_t>(stages_.rank())]; }

  /// All parts are equally large; the last may hold fewer rows.
  std::size_t part_bytes() const {
    return static_cast<std::size_t>(rows_per_part_ * record_bytes_);
  }

  RowRange own_range() const {
    const RowRange all = request_.range();
    const std::int64_t begin = std::min(all.begin + stages_.rank() * rows_per_part_, all.end);
    return {.begin = begin, .end = std::min(begin + rows_per_part_, all.end)};
  }

  void map_part(int rank, const StopFlag& stop) {
    const auto part = static_cast<std::size_t>(rank);
    const UniqueFd fd = receive_fd(addresses_[part], stop);
    try {
      (*parts_)[part] = cuda::VirtualMemory::import(fd.get(), request_.device, part_bytes());
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("placement peer: rows of rank {}: {}; device or "
                                            "host_shared would work",
                                            rank, error.what()));
    }
  }

  const ShardRequest& request_;
  StageRunner& stages_;
  std::int64_t record_bytes_;
  std::int64_t rows_per_part_ = 1;
  std::vector<std::string> addresses_;
  std::optional<FdServer> server_;
  std::shared_ptr<std::vector<cuda::VirtualMemory>> parts_;
};

}  // namespace

PlacedShard place_peer_cuda(const ShardRequest& request, StageRunner& stages) {
  PeerShardOpening opening(request, stages);
  opening.create();
  opening.map();
  opening.load();
  return opening.placed();
}

}  // namespace penstock::detail
