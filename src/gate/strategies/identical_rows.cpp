// Every rank holds some rows of the weight and the same tokens. It computes its share of the
// results, and the shares are gathered: with elementwise gating the gated columns, with headwise
// gating the projections, which are fewer than the columns that they govern.

#include "core/round_up.hpp"
#include "gate/strategies/strategies.hpp"

namespace penstock::detail {
namespace {

struct IdenticalRowsBuffers {
  std::span<std::byte> shares;  ///< [P, tokens, most rows of a rank]
  std::span<std::byte> tile;    ///< Scratch of the product.
};

/// What a gather moves for each rank: the rows of the longest share, and then some, so that every
/// token's begin at a multiple of 16 bytes, as products want it.
std::int64_t share_rows(const GateContext& gate) {
  constexpr std::int64_t kElements = 16 / sizeof(BF16);
  const std::int64_t longest = (gate.shape.output_size + gate.ranks - 1) / gate.ranks;
  return round_up(longest, kElements);
}

bool gathers_projections(const GateContext& gate) {
  return gate.shape.gating == GatingType::Headwise;
}

std::int64_t share_bytes(const GateContext& gate, std::int64_t tokens) {
  return tokens * share_rows(gate) *
         element_bytes(gathers_projections(gate) ? DType::F32 : DType::BF16);
}

IdenticalRowsBuffers identical_rows_buffers(const GateContext& gate, std::int64_t tokens,
                                            Arena& arena) {
  const GateOperations& operations = *gate.operations;
  const std::size_t scratch = gathers_projections(gate)
                                  ? operations.product_bytes()
                                  : operations.tile_bytes(tokens, share_rows(gate));
  return {.shares = arena.take<std::byte>(gate.ranks * share_bytes(gate, tokens)),
          .tile = arena.take<std::byte>(static_cast<std::int64_t>(scratch))};
}

/// This rank's share for `tokens` neighbouring rows from `row` on.
void compute_share(const GateContext& gate, const GateRun& run, std::int64_t row,
                   std::int64_t tokens, const IdenticalRowsBuffers& buffers, std::byte* share) {
  const IndexRange rows = gate.rows_of(gate.rank);
  if (gathers_projections(gate)) {
    gate.operations->product({.m = tokens,
                              .n = rows.size(),
                              .k = gate.shape.hidden_size,
                              .out_stride = share_rows(gate)},
                             run.x(gate, row), gate.weight(), share, DType::F32, buffers.tile,
                             run.stream);
    return;
  }
  GateTarget target = run.target(gate, row, rows.begin);
  target.out = reinterpret_cast<BF16*>(share);
  target.out_stride = share_rows(gate);
  gate.operations->gated_product({.tokens = tokens,
                                  .rows = rows.size(),
                                  .hidden = gate.shape.hidden_size,
                                  .x = run.x(gate, row),
                                  .w = gate.weight(),
                                  .target = target,
                                  .tile = buffers.tile},
                                 run.stream);
}

void use_share(const GateContext& gate, const GateRun& run, std::int64_t row, std::int64_t tokens,
               int rank, const std::byte* share) {
  const IndexRange rows = gate.rows_of(rank);
  const GateTarget target = run.target(gate, row, rows.begin);
  if (gathers_projections(gate)) {
    gate.operations->multiply({.data = share,
                               .dtype = DType::F32,
                               .stride = share_rows(gate),
                               .tokens = tokens,
                               .rows = rows.size()},
                              target, run.stream);
    return;
  }
  constexpr std::int64_t kBytes = sizeof(BF16);
  gate.operations->copy_rows({.from = share,
                              .from_stride = share_rows(gate) * kBytes,
                              .to = reinterpret_cast<std::byte*>(target.out),
                              .to_stride = target.out_stride * kBytes,
                              .row_bytes = rows.size() * kBytes,
                              .rows = tokens},
                             run.stream);
}

/// What the gather without a communicator needs: this rank's projections.
struct GatherBuffers {
  std::span<BF16> z;
  std::span<std::byte> scratch;
};

GatherBuffers take_for_gather(const GateContext& gate, std::int64_t tokens, Arena& arena) {
  const auto scratch = static_cast<std::int64_t>(gate.operations->product_bytes());
  return {.z = arena.take<BF16>(tokens * gate.rows_of(gate.rank).size()),
          .scratch = arena.take<std::byte>(scratch)};
}

void run_with_gather(const GateContext& gate, const GateRun& run, Arena& arena) {
  const IndexRange all = run.rows.runs[0];
  const std::int64_t rows = gate.rows_of(gate.rank).size();
  const GatherBuffers buffers =
      take_for_gather(gate, std::min(gate.block_tokens, all.size()), arena);
  for (std::int64_t begin = all.begin; begin < all.end; begin += gate.block_tokens) {
    const std::int64_t end = std::min(begin + gate.block_tokens, all.end);
    gate.operations->product({.m = end - begin, .n = rows, .k = gate.shape.hidden_size},
                             run.x(gate, begin), gate.weight(), buffers.z.data(), DType::BF16,
                             buffers.scratch, run.stream);
    for (std::int64_t row = begin; row < end; row += gate.gather->max_tokens()) {
      const GateTarget target = run.target(gate, row, 0);
      gate.gather->run({.shape = gate.shape,
                        .tokens = std::min(gate.gather->max_tokens(), end - row),
                        .z = buffers.z.data() + (row - begin) * rows,
                        .attn = target.attn,
                        .out = target.out},
                       run.stream);
    }
  }
}

}  // namespace

void take_identical_rows(const GateContext& gate, std::int64_t tokens, Arena& arena) {
  if (gate.gather != nullptr) {
    take_for_gather(gate, tokens, arena);
  } else {
    identical_rows_buffers(gate, tokens, arena);
  }
}

void run_identical_rows(const GateContext& gate, const GateRun& run, Arena& arena) {
  if (gate.gather != nullptr) {
    run_with_gather(gate, run, arena);
    return;
  }
  const IndexRange all = run.rows.runs[0];
  const IdenticalRowsBuffers buffers =
      identical_rows_buffers(gate, std::min(gate.block_tokens, all.size()), arena);
  for (std::int64_t row = all.begin; row < all.end; row += gate.block_tokens) {
    const std::int64_t tokens = std::min(gate.block_tokens, all.end - row);
    const auto bytes = static_cast<std::size_t>(share_bytes(gate, tokens));
    const auto shares = buffers.shares.first(bytes * static_cast<std::size_t>(gate.ranks));
    const auto mine = shares.subspan(bytes * static_cast<std::size_t>(gate.rank), bytes);
    if (gate.rows_of(gate.rank).size() < share_rows(gate)) gate.operations->zero(mine, run.stream);
    compute_share(gate, run, row, tokens, buffers, mine.data());
    gate.comm->all_gather(mine, shares, run.stream);
    for (int rank = 0; rank < gate.ranks; ++rank) {
      use_share(gate, run, row, tokens, rank,
                shares.data() + bytes * static_cast<std::size_t>(rank));
    }
  }
}

}  // namespace penstock::detail
