#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/dtype.hpp"

namespace penstock::detail {

enum class Collective : std::uint8_t {
  AllGather,
  AllToAll,
  AllToAllV,
  ReduceScatter,
  Broadcast,
  Barrier,
  AllGatherObject,
  Split,
};

/// The name of the Communicator function, for example "all_to_all_v".
std::string_view to_string(Collective collective);

/// What one rank passes to a collective, as far as the ranks must agree on it.
struct CallArguments {
  Collective collective = Collective::Barrier;
  std::uint64_t block_bytes = 0;  ///< One rank's block; broadcast: the data. Equal on all.
  std::int32_t detail = 0;        ///< Root or element type. Equal on all.
  std::int32_t color = 0;         ///< split only; may differ.
  std::int32_t key = 0;           ///< split only; may differ.
  std::vector<std::int64_t> in_bytes = {};   ///< all_to_all_v only: to each rank.
  std::vector<std::int64_t> out_bytes = {};  ///< all_to_all_v only: from each rank.
  std::string problem = {};  ///< What this rank alone can see to be wrong; else empty.
};

/// The arguments of one call, with what this rank can see to be wrong. Nothing is thrown here: the
/// other ranks must hear of it first.
CallArguments describe_all_gather(int size, std::size_t in_bytes, std::size_t out_bytes);
CallArguments describe_all_to_all(int size, std::size_t in_bytes, std::size_t out_bytes,
                                  std::size_t block_bytes);
CallArguments describe_all_to_all_v(int size, std::size_t in_size,
                                    std::span<const std::int64_t> in_bytes, std::size_t out_size,
                                    std::span<const std::int64_t> out_bytes);
CallArguments describe_reduce_scatter(int size, std::size_t in_bytes, std::size_t out_bytes,
                                      DType dtype);
CallArguments describe_broadcast(int size, std::size_t bytes, int root);
CallArguments describe_split(int color, int key);

/// The first thing that the ranks do not agree on, or nothing. A pure function of what all ranks
/// passed, so that every rank comes to the same answer.
///
/// Shapes: calls [size], in rank order.
std::optional<std::string> find_disagreement(std::span<const CallArguments* const> calls);

/// The same for engines whose ranks hold copies.
std::optional<std::string> find_disagreement(std::span<const CallArguments> calls);

/// CallArguments as bytes and back, for engines whose ranks share no memory.
///
/// Errors: PeerFailed if `bytes` were not written by encode_call.
std::vector<std::byte> encode_call(const CallArguments& call);
CallArguments decode_call(std::span<const std::byte> bytes);

/// Ranks of one split, in ascending color, each ordered by (key, rank). Negative colors are left out.
std::vector<std::vector<int>> split_groups(std::span<const CallArguments> calls);

/// Adds block `rank` of every rank in rank order, in float, rounding once.
///
/// Shapes: blocks [size] pointers to bytes.size() bytes each.
void sum_blocks(std::span<const std::byte* const> blocks, std::span<std::byte> out, DType dtype);

}  // namespace penstock::detail
