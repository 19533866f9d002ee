#include "penstock/comm/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock {
namespace {

void expect_bytes(const char* function, const char* name, std::size_t found, std::int64_t needed) {
  if (found == static_cast<std::size_t>(needed)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}: {} has {} bytes, {} are needed", function, name, found, needed));
}

/// Turns `sources` blocks that begin with [block_tokens, token_bytes], and lie `block_bytes` apart,
/// into [tokens, sources * token_bytes].
void lay_side_by_side(std::span<const std::byte> blocks, int sources, std::int64_t block_bytes,
                      std::int64_t token_bytes, std::span<std::byte> out) {
  const std::int64_t tokens =
      static_cast<std::int64_t>(out.size()) / std::max<std::int64_t>(1, sources * token_bytes);
  constexpr std::int64_t kTokensPerRange = 64;
  parallel_for(tokens, kTokensPerRange, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      for (int source = 0; source < sources; ++source) {
        const std::int64_t from = source * block_bytes + token * token_bytes;
        const std::int64_t to = (token * sources + source) * token_bytes;
        std::memcpy(out.data() + to, blocks.data() + from, static_cast<std::size_t>(token_bytes));
      }
    }
  });
}

/// Puts what every layer has for one rank side by side, rank after rank.
std::vector<std::byte> pack_by_rank(std::span<const std::span<const std::byte>> staged, int ranks,
                                    std::int64_t layer_block) {
  const auto layers = static_cast<std::int64_t>(staged.size());
  std::vector<std::byte> packed(static_cast<std::size_t>(ranks * layers * layer_block));
  parallel_for(ranks * layers, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::byte* from = staged[static_cast<std::size_t>(i % layers)].data();
      std::memcpy(packed.data() + i * layer_block, from + i / layers * layer_block,
                  static_cast<std::size_t>(layer_block));
    }
  });
  return packed;
}

}  // namespace

TokenRange sequence_chunk(std::int64_t tokens, int rank, int ranks) {
  const std::int64_t chunk = (tokens + ranks - 1) / ranks;
  const std::int64_t first = std::min(tokens, rank * chunk);
  return {first, std::min(chunk, tokens - first)};
}

TokenSlots agree_slots(Communicator& comm, std::int64_t tokens, std::int64_t max_tokens) {
  TokenSlots slots;
  slots.counts.resize(static_cast<std::size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(&tokens, 1)),
                  std::as_writable_bytes(std::span(slots.counts)));
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::int64_t count = slots.counts[static_cast<std::size_t>(rank)];
    if (count < 0 || count > max_tokens) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("agree_slots: rank {} has {} tokens, at most {} fit the slot", rank,
                              count, max_tokens));
    }
    slots.slot = std::max(slots.slot, count);
  }
  return slots;
}

void gather_row_ids(Communicator& comm, const TokenSlots& slots, std::span<const std::int32_t> ids,
                    std::span<std::int32_t> out) {
  if (slots.slot == 0) return;  // no rank has a token: all of them return here
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t block = out.size() / ranks;
  expects(block * ranks == out.size() && block % static_cast<std::size_t>(slots.slot) == 0,
          "gather_row_ids: out is not [size * slot, width]");
  expects(ids.size() <= block, "gather_row_ids: ids are more than a slot holds");
  const auto mine = out.subspan(static_cast<std::size_t>(comm.rank()) * block, block);
  std::ranges::copy(ids, mine.begin());
  std::ranges::fill(mine.subspan(ids.size()), -1);
  comm.all_gather(std::as_bytes(mine), std::as_writable_bytes(out));
}

void exchange_rows(Communicator& comm, const TokenSlots& slots,
                   std::span<const std::span<const std::byte>> staged, std::int64_t token_bytes,
                   std::span<const std::span<std::byte>> out) {
  if (slots.slot == 0 || staged.empty()) return;
  expects(staged.size() == out.size(), "exchange_rows: staged and out have unequal layers");
  const std::int64_t layer_block = slots.slot * token_bytes;
  for (std::size_t layer = 0; layer < staged.size(); ++layer) {
    expect_bytes("exchange_rows", "staged", staged[layer].size(), comm.size() * layer_block);
    expect_bytes("exchange_rows", "out", out[layer].size(),
                 slots.counts[static_cast<std::size_t>(comm.rank())] * comm.size() * token_bytes);
  }
  const auto block = static_cast<std::int64_t>(staged.size()) * layer_block;
  const std::vector<std::byte> packed = pack_by_rank(staged, comm.size(), layer_block);
  std::vector<std::byte> received(packed.size());
  comm.all_to_all(packed, received, static_cast<std::size_t>(block));
  for (std::size_t layer = 0; layer < out.size(); ++layer) {
    const auto blocks = std::span(received).subspan(layer * static_cast<std::size_t>(layer_block));
    lay_side_by_side(blocks, comm.size(), block, token_bytes, out[layer]);
  }
}

void gather_columns(Communicator& comm, std::span<const std::byte> rows, std::int64_t token_bytes,
                    std::span<std::byte> out) {
  expect_bytes("gather_columns", "out", out.size(),
               static_cast<std::int64_t>(rows.size()) * comm.size());
  std::vector<std::byte> gathered(out.size());
  comm.all_gather(rows, gathered);
  const std::int64_t tokens =
      static_cast<std::int64_t>(rows.size()) / std::max<std::int64_t>(1, token_bytes);
  lay_side_by_side(gathered, comm.size(), tokens * token_bytes, token_bytes, out);
}

void gather_chunk_columns(Communicator& comm, std::span<const std::byte> rows,
                          std::int64_t token_bytes, std::span<std::byte> out) {
  const std::int64_t tokens =
      static_cast<std::int64_t>(rows.size()) / std::max<std::int64_t>(1, token_bytes);
  const std::int64_t chunk = sequence_chunk(tokens, 0, comm.size()).count;
  const TokenRange mine = sequence_chunk(tokens, comm.rank(), comm.size());
  expect_bytes("gather_chunk_columns", "out", out.size(), mine.count * comm.size() * token_bytes);
  const auto block = static_cast<std::size_t>(chunk * token_bytes);
  // Padded to whole chunks, so that every rank sends and receives equal blocks.
  std::vector<std::byte> padded(block * static_cast<std::size_t>(comm.size()));
  std::ranges::copy(rows, padded.begin());
  std::vector<std::byte> received(padded.size());
  comm.all_to_all(padded, received, block);
  lay_side_by_side(received, comm.size(), chunk * token_bytes, token_bytes, out);
}

}  // namespace penstock
