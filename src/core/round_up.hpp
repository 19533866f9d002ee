#pragma once

#include <concepts>

namespace penstock::detail {

/// The smallest multiple of `step` that is not below `value`.
///
/// Range: value >= 0, step >= 1; the sum of both fits the type.
template <std::integral Integer>
constexpr Integer round_up(Integer value, Integer step) {
  return (value + step - 1) / step * step;
}

}  // namespace penstock::detail
