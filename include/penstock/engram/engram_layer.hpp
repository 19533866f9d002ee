#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/checkpoint/model_dir.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/reader/prefetcher.hpp"
#include "penstock/table/table.hpp"

namespace penstock {

/// Sizes of the gate.
struct EngramGateShape {
  std::int64_t tokens = 0;
  int hc_mult = 1;
  int dim = 0;
};

/// Adds the gated value to every copy of the residual stream.
///
/// Shapes: hidden and out [T, hc, dim], kv [T, (hc + 1) * dim] = keys of the copies, then the value;
///         q_weight and k_weight [hc, dim]; all bf16. mask [T] bytes, empty: every token is active.
///         `out` may be `hidden`.
/// Device: all on `device`.
/// Range:  a token whose mask is 0 keeps its hidden bits and its kv is not read.
/// Async:  on CUDA one kernel on `stream`.
/// Errors: InvalidArgument for sizes that do not fit.
void engram_gate(const EngramGateShape& shape, std::span<const BF16> hidden,
                 std::span<const BF16> kv, std::span<const BF16> q_weight,
                 std::span<const BF16> k_weight, float eps, std::span<const std::uint8_t> mask,
                 std::span<BF16> out, Device device, StreamRef stream = {});

}  // namespace penstock
