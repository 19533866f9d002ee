#pragma once

#include <cstdint>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"

namespace penstock {

/// Sizes of an Engram gate.
struct EngramGateShape {
  std::int64_t tokens = 0;
  int hc_mult = 1;  ///< Copies of the residual stream.
  int dim = 0;      ///< Width of one copy.
};

/// What the gate reads and writes; all of it on one device.
struct EngramGateArguments {
  std::span<const BF16> hidden;    ///< [T, hc, dim]
  std::span<const BF16> kv;        ///< [T, (hc + 1) * dim]: the keys of the copies, then the value.
  std::span<const BF16> q_weight;  ///< [hc, dim]
  std::span<const BF16> k_weight;  ///< [hc, dim]
  float eps = 0;                   ///< Of both RMS norms.
  std::span<const std::uint8_t> mask = {};  ///< [T]; 0: keep hidden. Empty: every token is active.
  std::span<BF16> out;                      ///< [T, hc, dim]; may be `hidden` itself.
};

/// Adds the gated value to every copy of the residual stream:
///
///   dot  = sum(hidden * q * k * key) / (rms(hidden) * rms(key) * sqrt(dim))
///   gate = sigmoid(sign(dot) * sqrt(max(|dot|, 1e-6)))      (the sign of 0 is +)
///   out  = bf16(hidden + gate * value)
///
/// Range:  a token whose mask is 0 keeps its bits, and its kv is not read, so that a number that is
///         not finite cannot leak from there.
/// Device: all buffers on `device`. Arithmetic is float throughout.
/// Async:  on CUDA one kernel is enqueued on `stream`; on the CPU `out` is written on return.
/// Errors: InvalidArgument for sizes that do not fit, before anything is written; Unsupported for
///         CUDA in a build without it.
void engram_gate(const EngramGateShape& shape, const EngramGateArguments& arguments,
                 Device device = {}, StreamRef stream = {});

}  // namespace penstock
