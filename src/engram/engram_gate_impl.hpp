#pragma once

#include "penstock/engram/engram_gate.hpp"

// The two halves of engram_gate(), after its checks.
namespace penstock::detail {

void engram_gate_cpu(const EngramGateShape& shape, const EngramGateArguments& arguments);
void engram_gate_cuda(const EngramGateShape& shape, const EngramGateArguments& arguments,
                      Device device, StreamRef stream);

/// The clamp on |dot| before its square root.
inline constexpr float kGateClamp = 1e-6F;

}  // namespace penstock::detail
