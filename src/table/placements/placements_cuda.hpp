#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "penstock/core/device.hpp"
#include "table/placements/place_shard.hpp"
#include "table/placements/shared_backing.hpp"
#include "table/sharing/mapping.hpp"

// The CUDA half of the placements. A build without CUDA never calls it, so that it needs no
// definition.
namespace penstock::detail {

/// Stages: Create takes the memory (OutOfMemory if it is not to be had), Load fills it.
PlacedShard place_device_cuda(const ShardRequest& request, StageRunner& stages);

/// Like place_device_cuda, with the shard's rows spread over the group's GPUs; Map brings the other
/// ranks' parts.
PlacedShard place_peer_cuda(const ShardRequest& request, StageRunner& stages);

/// Host memory that a GPU can read.
struct PinnedMemory {
  std::shared_ptr<const void> registration;  ///< Ends with the last copy; before the mapping does.
  const std::byte* device_data = nullptr;    ///< The first byte, as the GPU addresses it.
};

/// Registers host memory with the device's driver, piece by piece.
///
/// Range:  `access` is what this process may do with the memory; zero bytes give an empty result.
/// Errors: OutOfMemory or System with the bytes; PeerFailed once stopped; nothing stays registered.
PinnedMemory pin_cuda(std::span<const std::byte> memory, Device device, Access access,
                      const StopFlag& stop);

/// Why `device` cannot have memory of backing cumem; empty if it can, as far as one can tell without
/// taking any.
std::string cumem_refusal(Device device);

/// Errors: none yet; create() throws Unsupported where cumem_refusal is not empty.
std::unique_ptr<SharedBacking> make_cumem_backing(Device device, std::size_t bytes);

/// How many rows of 256 bytes at random places of `memory` the device reads in a second.
///
/// Device: `memory` is readable by it.
double random_rows_per_second_cuda(std::span<const std::byte> memory, Device device);

}  // namespace penstock::detail
