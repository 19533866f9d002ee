#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/engram/engram_weights.hpp"

namespace penstock {

/// What a layer does with its rows: projects them to keys and a value, and adds the gated value to
/// the residual stream.
///
/// Threads: one call at a time; project() and inject() share a workspace.
/// Cost:    max_tokens * (hc + 1) * dim bf16 of workspace on `device`, beside the weights.
class EngramInjection {
 public:
  /// Errors: InvalidArgument for max_tokens < 1; OutOfMemory; Unsupported for CUDA in a build without
  ///         it, or where cuBLASLt cannot be opened.
  EngramInjection(const EngramWeights& weights, Device device, std::int64_t max_tokens);
  ~EngramInjection();
  EngramInjection(EngramInjection&&) noexcept;
  EngramInjection& operator=(EngramInjection&&) noexcept;

  /// Computes kv = rows wkv^T into the workspace.
  ///
  /// Shapes: rows [T, row_width] bf16, on `device`.
  /// Async:  on CUDA one matrix product is enqueued on `stream`.
  /// Errors: InvalidArgument for T above max_tokens or a size that is no multiple of row_width.
  void project(std::span<const BF16> rows, StreamRef stream = {});

  /// Injects what project() computed last; see engram_gate() for the formula.
  ///
  /// Shapes: hidden and out [T, hc, dim], mask [T] or empty; T is that of the last project().
  /// Async:  on CUDA one kernel is enqueued on `stream`, which must be that of project().
  /// Errors: InvalidArgument for sizes that do not fit, before anything is written.
  void inject(std::span<const BF16> hidden, std::span<const std::uint8_t> mask, std::span<BF16> out,
              StreamRef stream = {});

  int hc_mult() const;
  int dim() const;
  std::int64_t row_width() const;
  std::int64_t resident_bytes() const;  ///< Weights and workspace.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
