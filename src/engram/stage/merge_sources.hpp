#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

namespace penstock::detail {

/// Merges `sources` copies of every token's records, of which at most one is not all zeros: each row
/// lies in one shard, and the others stage zeros for it.
///
/// Shapes: from [tokens, sources, token_bytes], to [tokens, token_bytes]; token_bytes a multiple of 8.
/// Async:  on CUDA one kernel on `stream`.
void merge_sources(std::span<const std::byte> from, int sources, std::int64_t token_bytes,
                   std::span<std::byte> to, Device device, StreamRef stream);

/// The CUDA half, in words of 8 bytes.
void merge_sources_cuda(const std::uint64_t* from, int sources, std::int64_t token_words,
                        std::uint64_t* to, std::int64_t words, Device device, StreamRef stream);

}  // namespace penstock::detail
