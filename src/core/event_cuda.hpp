#pragma once

#include <memory>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

// The CUDA halves of Stream and Event, defined in src/cuda/.
namespace penstock::detail {

std::shared_ptr<CUstream_st> cuda_make_stream(Device device);
void cuda_synchronize(Device device, StreamRef stream);
std::shared_ptr<void> cuda_make_timed_event(Device device);
void cuda_record(Device device, void* event, StreamRef stream);
void cuda_synchronize_event(Device device, void* event);
float cuda_elapsed_ms(Device device, void* begin, void* end);

}  // namespace penstock::detail
