#pragma once

#include <cstddef>

#include "gate/agreement.hpp"
#include "gate/strategies/strategies.hpp"
#include "penstock/gate/gate_linear.hpp"

// What a GateLinear is given.
namespace penstock::detail {

/// A slice of the weight [G, H].
struct WeightRegion {
  IndexRange rows;
  IndexRange columns;
};

/// The slice that `part` means on this rank.
WeightRegion weight_region(const GateContext& gate, WeightPart part);

/// Checks what a rank can judge alone. The weight has `weight_elements` elements and is given as
/// `given`; the strategy works on `needed`.
///
/// Errors: InvalidArgument that names the argument; Unsupported for CUDA in a build without it.
void check_gate_arguments(const GateContext& gate, std::size_t weight_elements, WeightPart given,
                          WeightPart needed, const GateOptions& options);

/// Everything that ranks must choose alike.
AgreedFields gate_choices(const GateShape& shape, WeightPart part, const GateOptions& options);

}  // namespace penstock::detail
