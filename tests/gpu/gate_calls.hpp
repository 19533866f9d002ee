#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "gpu/gpu_support.hpp"
#include "penstock/core/buffer.hpp"

// What the tests of gates on GPUs share.
namespace penstock {

/// Ranks share GPUs where there are fewer: everything but speed is the same.
inline Device device_of(int rank) {
  return Device::cuda(rank % std::max(1, cuda_device_count()));
}

inline Buffer on_device(Device device, const std::vector<BF16>& values) {
  Buffer buffer = Buffer::allocate(device, values.size() * sizeof(BF16));
  copy_bytes(buffer, std::as_bytes(std::span(values)));
  return buffer;
}

/// A rank's inputs and result on its GPU.
struct DeviceCall {
  DeviceCall(const GateProblem& problem, int rank)
      : x(on_device(device_of(rank), problem.x[static_cast<std::size_t>(rank)])),
        attn_out(on_device(device_of(rank), problem.attn_out[static_cast<std::size_t>(rank)])),
        out(Buffer::zeros(device_of(rank), attn_out.bytes())) {
    call.tokens = problem.tokens[static_cast<std::size_t>(rank)];
    call.attn_width = problem.attn_width;
    call.x = x.as<BF16>();
    call.attn_out = attn_out.as<BF16>();
    call.out = out.as<BF16>();
    call.token_counts = problem.tokens;
  }

  std::vector<BF16> result(StreamRef stream) const {
    std::vector<BF16> values(out.bytes() / sizeof(BF16));
    copy_bytes(std::as_writable_bytes(std::span(values)), out, stream);
    return values;
  }

  Buffer x;
  Buffer attn_out;
  Buffer out;
  GateCall call;
};

inline std::size_t free_bytes(Device device) {
  PENSTOCK_CUDA_CHECK(cudaSetDevice(device.index));
  std::size_t free = 0;
  std::size_t total = 0;
  PENSTOCK_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

inline GateOptions on_gpu(GateStrategy strategy, int rank) {
  GateOptions options;
  options.strategy = strategy;
  options.device = device_of(rank);
  return options;
}

}  // namespace penstock
