#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/comm/communicator.hpp"

// Buffers lie on the communicator's device. Under nccl everything but agree_slots is enqueued on
// `stream`, and memory for it comes from the device's pool; host engines have finished on return.
namespace penstock {

/// A contiguous run of the tokens of a step.
struct TokenRange {
  std::int64_t first = 0;
  std::int64_t count = 0;

  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// Rank `rank`'s run when `tokens` are cut into runs of ceil(tokens / ranks); later ones may be
/// short or empty.
TokenRange sequence_chunk(std::int64_t tokens, int rank, int ranks);

/// The tokens that each rank of a group brings to a step, and the common length they are padded to.
struct TokenSlots {
  std::vector<std::int64_t> counts;  ///< [size]
  std::int64_t slot = 0;             ///< Largest of counts.
};

/// Tells every rank how many tokens the others have.
///
/// Collective: all ranks; `tokens` may differ and be 0.
/// Errors:     InvalidArgument on every rank if any of them has more than `max_tokens`.
TokenSlots agree_slots(Communicator& comm, std::int64_t tokens, std::int64_t max_tokens);

/// Gathers the row ids of every rank's tokens, all layers at once.
///
/// Shapes:     ids [T, width] of this rank, T = counts[rank]; out [size * slot, width]: rank r's
///             tokens start at r * slot, and what it does not have is -1.
/// Collective: all ranks, with slots from agree_slots.
void gather_row_ids(Communicator& comm, const TokenSlots& slots, std::span<const std::int32_t> ids,
                    std::span<std::int32_t> out, StreamRef stream = {});

/// Sends the staged rows of several layers to the ranks whose tokens they belong to, and lays what
/// comes back side by side in rank order: the columns of rank 0, then those of rank 1, and so on.
///
/// Shapes:     staged [layers] of [size * slot, token_bytes], in the order of gather_row_ids; out
///             [layers] of [T, size * token_bytes]; token_bytes is what one shard stages for a token
///             of one layer.
/// Collective: all ranks, with as many layers. Cost: one all_to_all of layers * slot * token_bytes
///             a rank, whatever the number of layers; one copy of it on each side.
void exchange_rows(Communicator& comm, const TokenSlots& slots,
                   std::span<const std::span<const std::byte>> staged, std::int64_t token_bytes,
                   std::span<const std::span<std::byte>> out, StreamRef stream = {});

/// Brings the columns of every rank together for all tokens, which all ranks have alike.
///
/// Shapes:     rows [T, token_bytes]; out [T, size * token_bytes].
/// Collective: all ranks, with equal T.
void gather_columns(Communicator& comm, std::span<const std::byte> rows, std::int64_t token_bytes,
                    std::span<std::byte> out, StreamRef stream = {});

/// The sequence-parallel form of gather_columns: each rank gets all columns of its own chunk only.
///
/// Shapes:     rows [T, token_bytes]; out [sequence_chunk(T, rank, size).count, size * token_bytes].
/// Collective: all ranks, with equal T. Cost: one all_to_all, 1 / size of gather_columns' bytes.
void gather_chunk_columns(Communicator& comm, std::span<const std::byte> rows,
                          std::int64_t token_bytes, std::span<std::byte> out,
                          StreamRef stream = {});

}  // namespace penstock
