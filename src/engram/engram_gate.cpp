#include "penstock/engram/engram_gate.hpp"

#include <fmt/format.h>

#include <cstddef>

#include "core/build_config.hpp"
#include "engram/engram_gate_impl.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

void expect_size(const char* name, std::size_t found, std::int64_t needed) {
  if (found == static_cast<std::size_t>(needed)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("engram_gate: {} has {} elements, {} are needed", name, found, needed));
}

void check(const EngramGateShape& shape, const EngramGateArguments& arguments) {
  expects(shape.tokens >= 0, "engram_gate: tokens is negative");
  expects(shape.hc_mult >= 1, "engram_gate: hc_mult is below 1");
  expects(shape.dim >= 1, "engram_gate: dim is below 1");
  const std::int64_t copy_elements = std::int64_t{shape.hc_mult} * shape.dim;
  expect_size("hidden", arguments.hidden.size(), shape.tokens * copy_elements);
  expect_size("kv", arguments.kv.size(), shape.tokens * (copy_elements + shape.dim));
  expect_size("q_weight", arguments.q_weight.size(), copy_elements);
  expect_size("k_weight", arguments.k_weight.size(), copy_elements);
  expect_size("out", arguments.out.size(), shape.tokens * copy_elements);
  if (!arguments.mask.empty()) expect_size("mask", arguments.mask.size(), shape.tokens);
}

}  // namespace

void engram_gate(const EngramGateShape& shape, const EngramGateArguments& arguments, Device device,
                 StreamRef stream) {
  check(shape, arguments);
  if (shape.tokens == 0) return;
  switch (device.kind) {
    case DeviceKind::Cpu: return detail::engram_gate_cpu(shape, arguments);
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) {
        return detail::engram_gate_cuda(shape, arguments, device, stream);
      }
      static_cast<void>(stream);
      throw Error(ErrorCode::Unsupported, "engram_gate: built without PENSTOCK_WITH_CUDA");
  }
}

}  // namespace penstock
