#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

#include "penstock/comm/communicator.hpp"

namespace penstock::cli {

/// The largest of all ranks' values.
///
/// Collective: over `comm`.
inline double largest_of(Communicator& comm, double mine) {
  double most = mine;
  for (const auto& other : comm.all_gather_object(std::as_bytes(std::span(&mine, 1)))) {
    double value = 0;
    std::memcpy(&value, other.data(), sizeof(value));
    most = std::max(most, value);
  }
  return most;
}

}  // namespace penstock::cli
