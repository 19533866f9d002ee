#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace penstock::detail {

/// memmove that takes empty spans with null pointers, and does nothing when both are one place.
inline void copy_bytes(std::span<const std::byte> from, std::byte* to) {
  if (from.empty() || from.data() == to) return;
  std::memmove(to, from.data(), from.size());
}

}  // namespace penstock::detail
