#include <fmt/format.h>

#include <utility>

#include "table/lifecycle/load_rows.hpp"
#include "table/placements/host_region.hpp"
#include "table/placements/place_shard.hpp"
#include "table/sharing/memory_limit.hpp"

namespace penstock::detail {

TableView record_view(const TableView& bounds, const std::byte* records) {
  TableView view = bounds;
  view.num_parts = 1;
  view.rows_per_part = bounds.row_end - bounds.row_begin;
  view.in_host_memory = true;
  view.values[0] = records;
  view.scales[0] = records + (records == nullptr ? 0 : bounds.head_dim);
  view.value_stride = view.scale_stride = row_record_bytes(bounds.head_dim);
  return view;
}

PlacedShard place_host(const ShardRequest& request, StageRunner& stages) {
  Mapping mapping;
  stages.run(Stage::Create, [&](const StopFlag&) {
    check_memory_limit(request.bytes());
    mapping = Mapping::anonymous(static_cast<std::size_t>(request.bytes()));
    return std::string();
  });
  stages.run(Stage::Reserve, [&](const StopFlag& stop) {
    mapping.reserve(stop);
    return std::string();
  });
  auto region = std::make_shared<HostRegion>();
  stages.run(Stage::Map, [&](const StopFlag& stop) {
    *region = HostRegion(std::move(mapping), request.device, Access::ReadWrite, stop);
    return std::string();
  });
  stages.run(Stage::Load, [&](const StopFlag& stop) {
    load_rows(*request.rows, request.range(), region->mapping().data(), stop);
    return std::string();
  });
  stages.run(Stage::Seal, [&](const StopFlag&) {
    region->mapping().make_read_only();
    return std::string();
  });
  PlacedShard placed;
  placed.view = record_view(request.bounds, region->data());
  placed.backing = fmt::format("private memory, {}, read-only", describe_pages(region->mapping()));
  placed.resident_bytes = request.bytes();
  placed.memory = std::move(region);
  return placed;
}

}  // namespace penstock::detail
