#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gate/arena.hpp"
#include "gate/identical_gather.hpp"
#include "gate/operations.hpp"
#include "gate/peer_rows.hpp"
#include "gate/side_stream.hpp"
#include "gate/weight_stream_impl.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/gate/gate_linear.hpp"

namespace penstock::detail {

/// What a gate is: fixed when it is made.
struct GateContext {
  GateShape shape;
  GateRounding rounding = GateRounding::Once;
  DType k_shard_sums = DType::BF16;
  DType n_shard_projections = DType::F32;
  Communicator* comm = nullptr;  ///< Null in a group of one.
  int rank = 0;
  int ranks = 1;
  std::int64_t block_tokens = 0;
  GateOperations* operations = nullptr;
  StreamedLayer layer;  ///< Its rows are this rank's part of the weight, whatever part that is.
  WeightStreamImpl* stream = nullptr;
  SideStream* side = nullptr;         ///< Null: k_shard takes its blocks one after the other.
  IdenticalGather* gather = nullptr;  ///< Null: identical rows are gathered by `comm`.

  /// Rows of rank r's slice of the weight, or its columns under KShard.
  IndexRange rows_of(int r) const { return even_share(shape.output_size, ranks, r); }
  IndexRange columns_of(int r) const { return even_share(shape.hidden_size, ranks, r); }
  const BF16* weight() const { return layer.rows->own().data(); }
};

/// The rows of a call that one strategy handles, in up to two runs of neighbours.
struct GateRows {
  std::array<IndexRange, 2> runs;

  std::int64_t size() const { return runs[0].size() + runs[1].size(); }

  /// Calls visit(row, offset, count) for the runs that make up rows [range.begin, range.end) of
  /// these: `count` rows from `row` of the call on, which are `offset` rows into the range.
  template <typename Visit>
  void visit(IndexRange range, const Visit& visit_run) const {
    std::int64_t before = 0;
    for (const IndexRange& run : runs) {
      const std::int64_t begin = std::max(range.begin, before);
      const std::int64_t end = std::min(range.end, before + run.size());
      if (begin < end) visit_run(run.begin + begin - before, begin - range.begin, end - begin);
      before += run.size();
    }
  }
};

/// A call, or the part of one that a strategy handles.
struct GateRun {
  const GateCall* call = nullptr;
  GateRows rows;
  std::span<const std::int64_t> counts;  ///< Rows of this kind on every rank, where it matters.
  std::int64_t head_width = 1;
  StreamRef stream;

  const BF16* x(const GateContext& gate, std::int64_t row) const {
    return call->x.data() + row * gate.shape.hidden_size;
  }

  /// From row `row` of the call and from the first column of weight row `weight_row` on.
  GateTarget target(const GateContext& gate, std::int64_t row, std::int64_t weight_row) const {
    const std::int64_t at = row * call->attn_width + weight_row * head_width;
    return {.attn = call->attn_out.data() + at,
            .attn_stride = call->attn_width,
            .out = call->out.data() + at,
            .out_stride = call->attn_width,
            .head_width = head_width,
            .rounding = gate.rounding};
  }
};

/// Blocks of tokens that all ranks go through together, the longest rank's number of them.
template <typename Block>
void for_each_block(const GateContext& gate, const GateRun& run, const Block& block) {
  const std::int64_t longest = *std::ranges::max_element(run.counts);
  for (std::int64_t begin = 0; begin < longest; begin += gate.block_tokens) {
    block(begin, std::min(gate.block_tokens, longest - begin));
  }
}

/// Tokens of a rank with `count` of them in the block of `tokens` from `begin` on.
inline std::int64_t tokens_in_block(std::int64_t count, std::int64_t begin, std::int64_t tokens) {
  return std::clamp<std::int64_t>(count - begin, 0, tokens);
}

/// Scratch for products of up to `tokens` tokens whose weight rows may arrive in tiles.
std::span<std::byte> take_tile(const GateContext& gate, std::int64_t tokens, Arena& arena);

// Each strategy: what it takes from the arena for `tokens` tokens a rank, and the work.

void take_replicated(const GateContext& gate, std::int64_t tokens, Arena& arena);
void run_replicated(const GateContext& gate, const GateRun& run, Arena& arena);

void take_k_shard(const GateContext& gate, std::int64_t tokens, Arena& arena);
void run_k_shard(const GateContext& gate, const GateRun& run, Arena& arena);

void take_n_shard(const GateContext& gate, std::int64_t tokens, Arena& arena);
void run_n_shard(const GateContext& gate, const GateRun& run, Arena& arena);

void take_weight_gather(const GateContext& gate, std::int64_t tokens, Arena& arena);
void run_weight_gather(const GateContext& gate, const GateRun& run, Arena& arena);

void take_identical_rows(const GateContext& gate, std::int64_t tokens, Arena& arena);
void run_identical_rows(const GateContext& gate, const GateRun& run, Arena& arena);

}  // namespace penstock::detail
