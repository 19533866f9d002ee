#include "penstock/comm/exchange.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "comm/call_bytes.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::copy_rows;

void expect_bytes(const char* function, const char* name, std::size_t found, std::int64_t needed) {
  if (found == static_cast<std::size_t>(needed)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}: {} has {} bytes, {} are needed", function, name, found, needed));
}

/// Turns `sources` blocks that begin with [block_tokens, token_bytes], and lie `block_bytes` apart,
/// into [tokens, sources * token_bytes].
void lay_side_by_side(std::span<const std::byte> blocks, int sources, std::int64_t block_bytes,
                      std::int64_t token_bytes, std::span<std::byte> out, Device device,
                      StreamRef stream) {
  const std::int64_t tokens =
      static_cast<std::int64_t>(out.size()) / std::max<std::int64_t>(1, sources * token_bytes);
  for (int source = 0; source < sources && tokens > 0; ++source) {
    copy_rows({.from = blocks.data() + source * block_bytes,
               .from_stride = token_bytes,
               .to = out.data() + source * token_bytes,
               .to_stride = sources * token_bytes,
               .row_bytes = token_bytes,
               .rows = tokens},
              device, stream);
  }
}

/// Puts what every layer has for one rank side by side, rank after rank.
void pack_by_rank(std::span<const std::span<const std::byte>> staged, int ranks,
                  std::int64_t layer_block, std::span<std::byte> packed, Device device,
                  StreamRef stream) {
  const auto layers = static_cast<std::int64_t>(staged.size());
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    copy_rows({.from = staged[static_cast<std::size_t>(layer)].data(),
               .from_stride = layer_block,
               .to = packed.data() + layer * layer_block,
               .to_stride = layers * layer_block,
               .row_bytes = layer_block,
               .rows = ranks},
              device, stream);
  }
}

void copy_all(std::span<const std::byte> from, std::span<std::byte> to, Device device,
              StreamRef stream) {
  const auto bytes = static_cast<std::int64_t>(from.size());
  copy_rows({.from = from.data(),
             .from_stride = bytes,
             .to = to.data(),
             .to_stride = bytes,
             .row_bytes = bytes,
             .rows = 1},
            device, stream);
}

/// Every rank's `mine`, through host memory whatever the communicator's device.
std::vector<std::int64_t> gather_numbers(Communicator& comm, std::int64_t mine) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(comm.size()));
  const auto bytes = std::as_bytes(std::span(&mine, 1));
  if (comm.device().kind == DeviceKind::Cpu) {
    comm.all_gather(bytes, std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }
  const auto all = comm.all_gather_object(bytes);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::memcpy(&numbers[rank], all[rank].data(), std::min(all[rank].size(), sizeof(mine)));
  }
  return numbers;
}

}  // namespace

using detail::CallBytes;
using detail::fill_bytes;

TokenRange sequence_chunk(std::int64_t tokens, int rank, int ranks) {
  const std::int64_t chunk = (tokens + ranks - 1) / ranks;
  const std::int64_t first = std::min(tokens, rank * chunk);
  return {first, std::min(chunk, tokens - first)};
}

TokenSlots agree_slots(Communicator& comm, std::int64_t tokens, std::int64_t max_tokens) {
  TokenSlots slots;
  slots.counts = gather_numbers(comm, tokens);
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
                    std::span<std::int32_t> out, StreamRef stream) {
  if (slots.slot == 0) return;  // no rank has a token: all of them return here
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t block = out.size() / ranks;
  expects(block * ranks == out.size() && block % static_cast<std::size_t>(slots.slot) == 0,
          "gather_row_ids: out is not [size * slot, width]");
  expects(ids.size() <= block, "gather_row_ids: ids are more than a slot holds");
  const auto mine = out.subspan(static_cast<std::size_t>(comm.rank()) * block, block);
  copy_all(std::as_bytes(ids), std::as_writable_bytes(mine), comm.device(), stream);
  constexpr std::byte kPartOfMinusOne{0xFF};
  fill_bytes(std::as_writable_bytes(mine.subspan(ids.size())), kPartOfMinusOne, comm.device(),
             stream);
  comm.all_gather(std::as_bytes(mine), std::as_writable_bytes(out), stream);
}

void exchange_rows(Communicator& comm, const TokenSlots& slots,
                   std::span<const std::span<const std::byte>> staged, std::int64_t token_bytes,
                   std::span<const std::span<std::byte>> out, StreamRef stream) {
  if (slots.slot == 0 || staged.empty()) return;
  expects(staged.size() == out.size(), "exchange_rows: staged and out have unequal layers");
  const std::int64_t layer_block = slots.slot * token_bytes;
  for (std::size_t layer = 0; layer < staged.size(); ++layer) {
    expect_bytes("exchange_rows", "staged", staged[layer].size(), comm.size() * layer_block);
    expect_bytes("exchange_rows", "out", out[layer].size(),
                 slots.counts[static_cast<std::size_t>(comm.rank())] * comm.size() * token_bytes);
  }
  const auto block = static_cast<std::int64_t>(staged.size()) * layer_block;
  const auto bytes = static_cast<std::size_t>(comm.size() * block);
  const CallBytes packed(comm.device(), bytes, stream);
  const CallBytes received(comm.device(), bytes, stream);
  pack_by_rank(staged, comm.size(), layer_block, packed.span(), comm.device(), stream);
  comm.all_to_all(packed.span(), received.span(), static_cast<std::size_t>(block), stream);
  for (std::size_t layer = 0; layer < out.size(); ++layer) {
    const auto blocks = received.span().subspan(layer * static_cast<std::size_t>(layer_block));
    lay_side_by_side(blocks, comm.size(), block, token_bytes, out[layer], comm.device(), stream);
  }
}

void gather_columns(Communicator& comm, std::span<const std::byte> rows, std::int64_t token_bytes,
                    std::span<std::byte> out, StreamRef stream) {
  expect_bytes("gather_columns", "out", out.size(),
               static_cast<std::int64_t>(rows.size()) * comm.size());
  const CallBytes gathered(comm.device(), out.size(), stream);
  comm.all_gather(rows, gathered.span(), stream);
  const std::int64_t tokens =
      static_cast<std::int64_t>(rows.size()) / std::max<std::int64_t>(1, token_bytes);
  lay_side_by_side(gathered.span(), comm.size(), tokens * token_bytes, token_bytes, out,
                   comm.device(), stream);
}

void gather_chunk_columns(Communicator& comm, std::span<const std::byte> rows,
                          std::int64_t token_bytes, std::span<std::byte> out, StreamRef stream) {
  const std::int64_t tokens =
      static_cast<std::int64_t>(rows.size()) / std::max<std::int64_t>(1, token_bytes);
  const std::int64_t chunk = sequence_chunk(tokens, 0, comm.size()).count;
  const TokenRange mine = sequence_chunk(tokens, comm.rank(), comm.size());
  expect_bytes("gather_chunk_columns", "out", out.size(), mine.count * comm.size() * token_bytes);
  const auto block = static_cast<std::size_t>(chunk * token_bytes);
  // Padded to whole chunks, so that every rank sends and receives equal blocks.
  const std::size_t bytes = block * static_cast<std::size_t>(comm.size());
  const CallBytes padded(comm.device(), bytes, stream);
  const CallBytes received(comm.device(), bytes, stream);
  copy_all(rows, padded.span(), comm.device(), stream);
  fill_bytes(padded.span().subspan(rows.size()), std::byte{0}, comm.device(), stream);
  comm.all_to_all(padded.span(), received.span(), block, stream);
  lay_side_by_side(received.span(), comm.size(), chunk * token_bytes, token_bytes, out,
                   comm.device(), stream);
}

}  // namespace penstock
