#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "penstock/core/dtype.hpp"

namespace penstock::detail {

/// Bytes of a tensor; nothing if a size is negative, if its bits pass 64 bits of count, or if they
/// are not whole bytes.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

}  // namespace penstock::detail
