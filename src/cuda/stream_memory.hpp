#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

// Memory that comes and goes in the order of a stream, so that a step takes and returns it without
// waiting. Defined in builds with CUDA.
namespace penstock::cuda {

/// From the device's pool, which keeps what is given back.
///
/// Errors: OutOfMemory.
std::byte* allocate_async(Device device, std::size_t bytes, StreamRef stream);
void free_async(Device device, std::byte* data, StreamRef stream) noexcept;

/// Copies `rows` rows of `row_bytes` within the device; strides in bytes.
void copy_rows_async(Device device, const std::byte* from, std::int64_t from_stride, std::byte* to,
                     std::int64_t to_stride, std::int64_t row_bytes, std::int64_t rows,
                     StreamRef stream);

void fill_async(Device device, std::byte* data, std::byte value, std::size_t bytes,
                StreamRef stream);

}  // namespace penstock::cuda
