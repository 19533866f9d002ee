#pragma once

#include <cstddef>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

// The CUDA half of Buffer and of cuda_device_count(), defined in src/cuda/. A CPU-only build never
// calls them, so that it needs no definition.
namespace penstock::detail {

std::byte* cuda_allocate(Device device, std::size_t bytes);
void cuda_zero(Device device, std::byte* data, std::size_t bytes);
void cuda_free(Device device, std::byte* data) noexcept;
void cuda_copy_in(Device device, std::byte* data, std::span<const std::byte> bytes);
void cuda_copy_out(Device device, std::span<std::byte> bytes, const std::byte* data,
                   StreamRef stream);
int cuda_visible_devices();

}  // namespace penstock::detail
