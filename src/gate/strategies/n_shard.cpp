// Every rank holds some rows of the weight. A block of tokens is gathered from all ranks,
// multiplied by this rank's rows, and the projections travel back to the tokens' owners.

#include <algorithm>
#include <vector>

#include "gate/strategies/strategies.hpp"

namespace penstock::detail {
namespace {

struct NShardBuffers {
  std::span<BF16> x;              ///< [P, tokens, H]
  std::span<std::byte> computed;  ///< For each rank [its tokens, this rank's rows].
  std::span<std::byte> received;  ///< From each rank [this rank's tokens, its rows].
  std::span<std::byte> scratch;
};

NShardBuffers n_shard_buffers(const GateContext& gate, std::int64_t tokens, Arena& arena) {
  const std::int64_t bytes = element_bytes(gate.n_shard_projections);
  const std::int64_t rows = gate.rows_of(gate.rank).size();
  return {.x = arena.take<BF16>(gate.ranks * tokens * gate.shape.hidden_size),
          .computed = arena.take<std::byte>(gate.ranks * tokens * rows * bytes),
          .received = arena.take<std::byte>(tokens * gate.shape.output_size * bytes),
          .scratch =
              arena.take<std::byte>(static_cast<std::int64_t>(gate.operations->product_bytes()))};
}

/// One block of tokens on its way through the group.
class NShardBlock {
 public:
  NShardBlock(const GateContext& gate, const GateRun& run, const NShardBuffers& buffers,
              std::int64_t begin, std::int64_t tokens)
      : gate_(gate),
        run_(run),
        buffers_(buffers),
        begin_(begin),
        tokens_(tokens) {}

  void gather_tokens() const {
    const std::int64_t row_bytes = gate_.shape.hidden_size * std::int64_t{sizeof(BF16)};
    const auto size = [&](std::int64_t rows) { return static_cast<std::size_t>(rows * row_bytes); };
    const auto all = std::as_writable_bytes(buffers_.x).first(size(gate_.ranks * tokens_));
    const auto mine = all.subspan(size(gate_.rank * tokens_), size(tokens_));
    run_.rows.visit(range(), [&](std::int64_t row, std::int64_t offset, std::int64_t count) {
      gate_.operations->copy_rows({.from = reinterpret_cast<const std::byte*>(run_.x(gate_, row)),
                                   .from_stride = row_bytes,
                                   .to = mine.data() + offset * row_bytes,
                                   .to_stride = row_bytes,
                                   .row_bytes = row_bytes,
                                   .rows = count},
                                  run_.stream);
    });
    gate_.operations->zero(mine.subspan(size(range().size())), run_.stream);
    gate_.comm->all_gather(mine, all, run_.stream);
  }

  void multiply() const {
    std::byte* to = buffers_.computed.data();
    for (int rank = 0; rank < gate_.ranks; ++rank) {
      const std::int64_t count = tokens_of(rank);
      gate_.operations->product(
          {.m = count, .n = rows_of(gate_.rank), .k = gate_.shape.hidden_size},
          buffers_.x.data() + rank * tokens_ * gate_.shape.hidden_size, gate_.weight(), to,
          gate_.n_shard_projections, buffers_.scratch, run_.stream);
      to += bytes(count, rows_of(gate_.rank));
    }
  }

  void return_and_gate() const {
    std::vector<std::int64_t> in_bytes;
    std::vector<std::int64_t> out_bytes;
    std::int64_t sent = 0;
    std::int64_t received = 0;
    for (int rank = 0; rank < gate_.ranks; ++rank) {
      sent += in_bytes.emplace_back(bytes(tokens_of(rank), rows_of(gate_.rank)));
      received += out_bytes.emplace_back(bytes(range().size(), rows_of(rank)));
    }
    gate_.comm->all_to_all_v(buffers_.computed.first(static_cast<std::size_t>(sent)), in_bytes,
                             buffers_.received.first(static_cast<std::size_t>(received)), out_bytes,
                             run_.stream);
    const std::byte* from = buffers_.received.data();
    for (int rank = 0; rank < gate_.ranks; ++rank) {
      gate_columns_of(rank, from);
      from += out_bytes[static_cast<std::size_t>(rank)];
    }
  }

 private:
  std::int64_t tokens_of(int rank) const {
    return tokens_in_block(run_.counts[static_cast<std::size_t>(rank)], begin_, tokens_);
  }
  std::int64_t rows_of(int rank) const { return gate_.rows_of(rank).size(); }
  std::int64_t bytes(std::int64_t tokens, std::int64_t rows) const {
    return tokens * rows * element_bytes(gate_.n_shard_projections);
  }

  /// This rank's tokens of the block.
  IndexRange range() const { return {begin_, begin_ + tokens_of(gate_.rank)}; }

  void gate_columns_of(int rank, const std::byte* projections) const {
    run_.rows.visit(range(), [&](std::int64_t row, std::int64_t offset, std::int64_t count) {
      gate_.operations->multiply({.data = projections + bytes(offset, rows_of(rank)),
                                  .dtype = gate_.n_shard_projections,
                                  .stride = rows_of(rank),
                                  .tokens = count,
                                  .rows = rows_of(rank)},
                                 run_.target(gate_, row, gate_.rows_of(rank).begin), run_.stream);
    });
  }

  const GateContext& gate_;
  const GateRun& run_;
  const NShardBuffers& buffers_;
  std::int64_t begin_;
  std::int64_t tokens_;
};

}  // namespace

void take_n_shard(const GateContext& gate, std::int64_t tokens, Arena& arena) {
  n_shard_buffers(gate, tokens, arena);
}

void run_n_shard(const GateContext& gate, const GateRun& run, Arena& arena) {
  const std::int64_t longest = *std::ranges::max_element(run.counts);
  const NShardBuffers buffers = n_shard_buffers(gate, std::min(gate.block_tokens, longest), arena);
  for_each_block(gate, run, [&](std::int64_t begin, std::int64_t tokens) {
    const NShardBlock block(gate, run, buffers, begin, tokens);
    block.gather_tokens();
    block.multiply();
    block.return_and_gate();
  });
}

}  // namespace penstock::detail
