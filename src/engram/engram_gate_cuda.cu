#include <cstdint>
#include <limits>
#include <string>

#include "cuda/alignment.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "engram/engram_gate_impl.hpp"
#include "engram/engram_gate_kernels.cuh"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

using cuda::is_aligned;

using Kernel = void (*)(const GateArguments);

Kernel pick_kernel(const GateArguments& a) {
  const bool has_vectors = a.dim % 8 == 0 && is_aligned(a.hidden) && is_aligned(a.kv) &&
                           is_aligned(a.q_weight) && is_aligned(a.k_weight) && is_aligned(a.out);
  const int vectors = (a.dim / 8 + kGateThreads - 1) / kGateThreads;
  if (has_vectors && vectors == 1) return gate_vectors_kernel<1>;
  if (has_vectors && vectors <= 3) return gate_vectors_kernel<3>;  // 5,120, the released width
  if (has_vectors && vectors == 4) return gate_vectors_kernel<4>;
  return gate_elements_kernel;
}

}  // namespace

void engram_gate_cuda(const EngramGateShape& shape, const EngramGateArguments& arguments,
                      Device device, StreamRef stream) {
  GateArguments a;
  a.hidden = arguments.hidden.data();
  a.kv = arguments.kv.data();
  a.q_weight = arguments.q_weight.data();
  a.k_weight = arguments.k_weight.data();
  a.mask = arguments.mask.empty() ? nullptr : arguments.mask.data();
  a.out = arguments.out.data();
  a.hc_mult = shape.hc_mult;
  a.dim = shape.dim;
  a.eps = arguments.eps;
  const std::int64_t blocks = shape.tokens * shape.hc_mult;
  expects(blocks <= std::numeric_limits<std::int32_t>::max(),
          "engram_gate: " + std::to_string(blocks) + " rows in one call, at most 2^31 - 1");
  const cuda::DeviceGuard guard(device);
  cuda::launch("engram_gate_kernel", pick_kernel(a), {static_cast<int>(blocks), kGateThreads},
               stream, a);
}

}  // namespace penstock::detail
