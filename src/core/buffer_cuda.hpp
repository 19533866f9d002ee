#pragma once

#include <cstddef>

#include "penstock/core/device.hpp"

// The CUDA half of Buffer and of cuda_device_count(), defined in src/cuda/. A CPU-only build never
// calls them, so that it needs no definition.
namespace penstock::detail {

std::byte* cuda_allocate(Device device, std::size_t bytes);
void cuda_zero(Device device, std::byte* data, std::size_t bytes);
void cuda_free(Device device, std::byte* data) noexcept;
int cuda_visible_devices();

}  // namespace penstock::detail
