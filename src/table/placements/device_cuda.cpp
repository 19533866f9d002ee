#include <cstddef>
#include <string>
#include <utility>

#include "penstock/core/buffer.hpp"
#include "table/placements/load_rows_cuda.hpp"
#include "table/placements/placements_cuda.hpp"

namespace penstock::detail {

PlacedShard place_device_cuda(const ShardRequest& request, StageRunner& stages) {
  auto memory = std::make_shared<Buffer>();
  stages.run(Stage::Create, [&](const StopFlag&) {
    *memory = Buffer::allocate(request.device, static_cast<std::size_t>(request.bytes()));
    return std::string();
  });
  stages.run(Stage::Load, [&](const StopFlag& stop) {
    load_rows_cuda(*request.rows, request.range(), memory->data(), request.device, stop);
    return std::string();
  });
  PlacedShard placed;
  placed.view = record_view(request.bounds, memory->data());
  placed.view.in_host_memory = false;
  placed.backing = "memory of " + to_string(request.device);
  placed.resident_bytes = request.bytes();
  placed.memory = std::move(memory);
  return placed;
}

}  // namespace penstock::detail
