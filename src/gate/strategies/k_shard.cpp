// Every rank holds some columns of the weight. A block of tokens is cut by columns and exchanged,
// multiplied into partial sums for the tokens of all ranks, and the sums are added over the ranks.
//
// With a side stream, that is where blocks are multiplied, while the caller's stream adds the sums of
// the block before and exchanges the block after. All calls of the communicator stay on the caller's
// stream, as a communicator has one.

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

#include "gate/strategies/strategies.hpp"

namespace penstock::detail {
namespace {

/// What both streams touch: one for each block that is on its way.
struct KShardSet {
  std::span<BF16> received;      ///< From each rank this rank's columns of its tokens.
  std::span<std::byte> partial;  ///< [P, tokens, G], zero where a rank has fewer tokens.
};

struct KShardBuffers {
  std::span<BF16> sent;      ///< For each rank its columns of this rank's tokens.
  std::span<std::byte> sum;  ///< [tokens, G]
  std::span<std::byte> scratch;
  std::array<KShardSet, 2> sets;  ///< The second one only where blocks overlap.
};

bool overlaps(const GateContext& gate, std::int64_t longest) {
  return gate.side != nullptr && longest > gate.block_tokens;
}

/// For calls of which no rank has more than `longest` tokens.
KShardBuffers k_shard_buffers(const GateContext& gate, std::int64_t longest, Arena& arena) {
  const std::int64_t tokens = std::min(gate.block_tokens, longest);
  const std::int64_t width = gate.shape.output_size * element_bytes(gate.k_shard_sums);
  const std::int64_t columns = gate.columns_of(gate.rank).size();
  const auto take_set = [&]() -> KShardSet {
    return {.received = arena.take<BF16>(gate.ranks * tokens * columns),
            .partial = arena.take<std::byte>(gate.ranks * tokens * width)};
  };
  KShardBuffers buffers;
  buffers.sent = arena.take<BF16>(tokens * gate.shape.hidden_size);
  buffers.sum = arena.take<std::byte>(tokens * width);
  buffers.scratch =
      arena.take<std::byte>(static_cast<std::int64_t>(gate.operations->product_bytes()));
  buffers.sets[0] = take_set();
  if (overlaps(gate, longest)) buffers.sets[1] = take_set();
  return buffers;
}

/// One block of tokens on its way through the group.
class KShardBlock {
 public:
  KShardBlock(const GateContext& gate, const GateRun& run, const KShardBuffers& buffers, int slot,
              IndexRange range)
      : gate_(gate),
        run_(run),
        buffers_(buffers),
        set_(buffers.sets[static_cast<std::size_t>(slot)]),
        begin_(range.begin),
        tokens_(range.size()) {}

  void exchange_columns() const {
    std::vector<std::int64_t> in_bytes;
    std::vector<std::int64_t> out_bytes;
    std::int64_t sent = 0;
    for (int rank = 0; rank < gate_.ranks; ++rank) {
      const IndexRange columns = gate_.columns_of(rank);
      pack(columns, sent);
      in_bytes.push_back(mine() * columns.size() * kBytes);
      out_bytes.push_back(tokens_of(rank) * my_columns() * kBytes);
      sent += mine() * columns.size();
    }
    const auto used = [](std::span<BF16> buffer, const std::vector<std::int64_t>& bytes) {
      const auto sum = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
      return std::as_writable_bytes(buffer).first(static_cast<std::size_t>(sum));
    };
    gate_.comm->all_to_all_v(used(buffers_.sent, in_bytes), in_bytes,
                             used(set_.received, out_bytes), out_bytes, run_.stream);
  }

  void multiply(StreamRef stream) const {
    std::int64_t received = 0;
    for (int rank = 0; rank < gate_.ranks; ++rank) {
      const int first = rank;
      std::int64_t count = tokens_of(rank);
      // Full parts and the one that follows them lie side by side: one product, not one a rank.
      while (tokens_of(rank) == tokens_ && rank + 1 < gate_.ranks) count += tokens_of(++rank);
      std::byte* partial = set_.partial.data() + first * tokens_ * sum_bytes();
      gate_.operations->product({.m = count, .n = gate_.shape.output_size, .k = my_columns()},
                                set_.received.data() + received, gate_.weight(), partial,
                                gate_.k_shard_sums, buffers_.scratch, stream);
      received += count * my_columns();
      const std::int64_t missing = (rank + 1 - first) * tokens_ - count;
      gate_.operations->zero(
          {partial + count * sum_bytes(), static_cast<std::size_t>(missing * sum_bytes())}, stream);
    }
  }

  void add_and_gate() const {
    const auto size = [&](std::int64_t rows) {
      return static_cast<std::size_t>(rows * sum_bytes());
    };
    gate_.comm->reduce_scatter(set_.partial.first(size(gate_.ranks * tokens_)),
                               buffers_.sum.first(size(tokens_)), gate_.k_shard_sums, run_.stream);
    run_.rows.visit(
        {begin_, begin_ + mine()}, [&](std::int64_t row, std::int64_t offset, std::int64_t count) {
          gate_.operations->multiply({.data = buffers_.sum.data() + offset * sum_bytes(),
                                      .dtype = gate_.k_shard_sums,
                                      .stride = gate_.shape.output_size,
                                      .tokens = count,
                                      .rows = gate_.shape.output_size},
                                     run_.target(gate_, row, 0), run_.stream);
        });
  }

 private:
  static constexpr std::int64_t kBytes = sizeof(BF16);

  std::int64_t tokens_of(int rank) const {
    return tokens_in_block(run_.counts[static_cast<std::size_t>(rank)], begin_, tokens_);
  }
  std::int64_t mine() const { return tokens_of(gate_.rank); }
  std::int64_t my_columns() const { return gate_.columns_of(gate_.rank).size(); }
  std::int64_t sum_bytes() const {
    return gate_.shape.output_size * element_bytes(gate_.k_shard_sums);
  }

  /// Puts `columns` of this rank's tokens into `sent`, from element `at` on.
  void pack(IndexRange columns, std::int64_t at) const {
    auto* to = reinterpret_cast<std::byte*>(buffers_.sent.data() + at);
    const std::int64_t row_bytes = columns.size() * kBytes;
    run_.rows.visit({begin_, begin_ + mine()},
                    [&](std::int64_t row, std::int64_t offset, std::int64_t count) {
                      const BF16* from = run_.x(gate_, row) + columns.begin;
                      gate_.operations->copy_rows({.from = reinterpret_cast<const std::byte*>(from),
                                                   .from_stride = gate_.shape.hidden_size * kBytes,
                                                   .to = to + offset * row_bytes,
                                                   .to_stride = row_bytes,
                                                   .row_bytes = row_bytes,
                                                   .rows = count},
                                                  run_.stream);
                    });
  }

  const GateContext& gate_;
  const GateRun& run_;
  const KShardBuffers& buffers_;
  const KShardSet& set_;
  std::int64_t begin_;
  std::int64_t tokens_;
};

/// Blocks whose products run on the side stream. Even and odd blocks have a set of buffers each.
///
/// On the caller's stream, block i + 1 is exchanged after the product of block i - 1 was waited for,
/// which had read the same set; and the side stream follows that exchange, which stands behind the
/// sum of block i - 1, which had read the set's partial sums. No other dependency is needed.
void run_overlapped(const GateContext& gate, const GateRun& run, const KShardBuffers& buffers,
                    std::int64_t longest) {
  const std::int64_t step = gate.block_tokens;
  const auto block_at = [&](std::int64_t begin) {
    const auto slot = static_cast<int>(begin / step % 2);
    return KShardBlock(gate, run, buffers, slot, {begin, std::min(begin + step, longest)});
  };
  const auto send_and_multiply = [&](std::int64_t begin) {
    const KShardBlock block = block_at(begin);
    block.exchange_columns();
    gate.side->follow(run.stream);
    block.multiply(gate.side->ref());
    gate.side->mark(static_cast<int>(begin / step % 2));
  };
  send_and_multiply(0);
  for (std::int64_t begin = 0; begin < longest; begin += step) {
    if (begin + step < longest) send_and_multiply(begin + step);
    gate.side->make_wait(run.stream, static_cast<int>(begin / step % 2));
    block_at(begin).add_and_gate();
  }
}

}  // namespace

void take_k_shard(const GateContext& gate, std::int64_t tokens, Arena& arena) {
  k_shard_buffers(gate, tokens, arena);
}

void run_k_shard(const GateContext& gate, const GateRun& run, Arena& arena) {
  const std::int64_t longest = *std::ranges::max_element(run.counts);
  const KShardBuffers buffers = k_shard_buffers(gate, longest, arena);
  if (overlaps(gate, longest)) {
    run_overlapped(gate, run, buffers, longest);
    return;
  }
  for_each_block(gate, run, [&](std::int64_t begin, std::int64_t tokens) {
    const KShardBlock block(gate, run, buffers, 0, {begin, begin + tokens});
    block.exchange_columns();
    block.multiply(run.stream);
    block.add_and_gate();
  });
}

}  // namespace penstock::detail
