#pragma once

#include <concepts>
#include <cstddef>

namespace penstock::detail {

/// A count that is not negative, in the type that the standard library counts with.
constexpr std::size_t to_size(std::integral auto count) {
  return static_cast<std::size_t>(count);
}

}  // namespace penstock::detail
