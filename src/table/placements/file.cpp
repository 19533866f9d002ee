#include <fmt/format.h>

#include <utility>

#include "penstock/core/error.hpp"
#include "table/placements/place_shard.hpp"
#include "table/sharing/mapping.hpp"

namespace penstock::detail {
namespace {

void check_readable(const ShardRequest& request) {
  if (request.rows->split_arrays().values == nullptr) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("placement file needs rows that lie in a file, found {}; host and "
                            "host_shared would work",
                            request.rows->description()));
  }
  if (request.device.kind != DeviceKind::Cpu) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("placement file is read by the CPU, found device {}; host and "
                            "host_shared would work",
                            to_string(request.device)));
  }
}

}  // namespace

PlacedShard place_file(const ShardRequest& request, StageRunner& stages) {
  stages.run(Stage::Map, [&](const StopFlag&) {
    check_readable(request);
    return std::string();
  });
  const auto arrays = request.rows->split_arrays();
  const RowRange range = request.range();
  PlacedShard placed;
  placed.view = request.bounds;
  placed.view.num_parts = 1;
  placed.view.rows_per_part = range.end - range.begin;
  placed.view.value_stride = request.bounds.head_dim;
  placed.view.scale_stride = request.bounds.head_dim / 32;
  placed.view.values[0] = arrays.values + range.begin * placed.view.value_stride;
  placed.view.scales[0] = arrays.scales + range.begin * placed.view.scale_stride;
  const auto advise = [&](const std::byte* first, std::int64_t stride) {
    const std::int64_t bytes = placed.view.rows_per_part * stride;
    expect_random_reads({first, static_cast<std::size_t>(bytes)});
  };
  advise(placed.view.values[0], placed.view.value_stride);
  advise(placed.view.scales[0], placed.view.scale_stride);
  placed.memory = request.rows;
  placed.backing = "pages of " + request.rows->description();
  return placed;
}

}  // namespace penstock::detail
