#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "penstock/core/device.hpp"
#include "penstock/table/column_shards.hpp"
#include "penstock/table/host_backing.hpp"
#include "penstock/table/row_source.hpp"
#include "penstock/table/table_view.hpp"
#include "table/sharing/stage.hpp"

// What every placement takes and gives. One function per placement; each does all of its work in
// stages, so that every rank of the group gets through or every rank raises.
namespace penstock::detail {

/// A shard that is to be placed. Lives longer than the placing.
struct ShardRequest {
  std::shared_ptr<const RowSource> rows;
  TableView bounds;  ///< Complete but for addresses, strides and the counter.
  Device device;
  HostBacking backing = HostBacking::Auto;  ///< Of host_shared.

  RowRange range() const { return {.begin = bounds.row_begin, .end = bounds.row_end}; }
  std::int64_t bytes() const {
    return (bounds.row_end - bounds.row_begin) * row_record_bytes(bounds.head_dim);
  }
};

/// A shard in its place.
struct PlacedShard {
  TableView view;  ///< Complete but for the counter.
  std::shared_ptr<const void> memory;
  std::string backing;
  std::string backing_choice;  ///< Of host_shared.
  std::int64_t resident_bytes = 0;
  std::int64_t shared_bytes = 0;
};

PlacedShard place_host(const ShardRequest& request, StageRunner& stages);
PlacedShard place_host_shared(const ShardRequest& request, StageRunner& stages);
PlacedShard place_file(const ShardRequest& request, StageRunner& stages);

/// `bounds` with the records that begin at `records`, in host memory.
TableView record_view(const TableView& bounds, const std::byte* records);

}  // namespace penstock::detail
