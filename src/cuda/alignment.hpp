#pragma once

#include <cstdint>

namespace penstock::cuda {

/// Bytes of the widest load or store of a thread. What begins at a multiple of them can be read and
/// written that wide.
inline constexpr std::uintptr_t kVectorBytes = 16;

/// Whether `pointer` is a multiple of `bytes`.
inline bool is_aligned(const void* pointer, std::uintptr_t bytes = kVectorBytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace penstock::cuda
