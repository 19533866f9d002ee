#pragma once

#include <cstdint>
#include <span>

#include "penstock/core/dtype.hpp"

namespace penstock::cli {

/// Fills `out` with numbers in [-2, 2) that depend on `seed` and their index only, so that every
/// rank and every chunking sees the same input for the same token.
void fill_input(std::uint64_t seed, std::uint64_t first_index, std::span<BF16> out);

}  // namespace penstock::cli
