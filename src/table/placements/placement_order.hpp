#pragma once

#include <cstddef>
#include <vector>

#include "penstock/table/placement.hpp"
#include "penstock/table/table.hpp"

namespace penstock::detail {

/// The placements to try, in order.
struct PlacementOrder {
  std::vector<Placement> order;
  std::size_t num_asked_for = 1;  ///< The others are fallbacks.
};

/// What the options ask for and allow. A pure function, equal on all ranks.
PlacementOrder placements_to_try(const TableOptions& options);

}  // namespace penstock::detail
