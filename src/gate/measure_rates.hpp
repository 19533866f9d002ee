#pragma once

#include <cstdint>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/gate/planner.hpp"
#include "penstock/gate/strategy.hpp"

namespace penstock::detail {

/// How much is done for a measurement.
struct RateSizes {
  GateShape shape;                    ///< Its weight travels, and is read by few tokens.
  std::int64_t product_tokens = 0;    ///< Of a large product,
  std::int64_t product_rows = 0;      ///< with so many rows of the weight.
  std::int64_t few_tokens = 1;        ///< Of a product that waits for the weight.
  std::int64_t collective_bytes = 0;  ///< Of a rank, in a collective of fixed cost,
  std::int64_t gather_bytes = 0;      ///< and in one that the link bounds.
  int batch = 1;  ///< Short ones are timed so many at once, for their start not to count.
  int repeats = 1;
};

/// Sizes that take some tens of milliseconds.
RateSizes rate_sizes(DeviceKind device);

GateRates measure_gate_rates(Communicator* comm, Device device, const RateSizes& sizes,
                             StreamRef stream = {});

}  // namespace penstock::detail
