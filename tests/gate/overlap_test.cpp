// Blocks of k_shard on two streams, watched on the CPU: what is enqueued on which stream, and whether
// the waits between the streams order everything that touches the same bytes.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "gate/gate_ranks.hpp"
#include "gate/gate_state.hpp"
#include "support/forwarding_communicator.hpp"

namespace penstock {
namespace {

using detail::GateContext;
using detail::GateRun;
using Mix = std::vector<std::int64_t>;

// The CPU ignores streams, so any two values tell them apart.
int stream_tokens[2];

StreamRef stream_of(int index) {
  return StreamRef(reinterpret_cast<CUstream_st*>(&stream_tokens[index]));
}

int index_of(StreamRef stream) {
  return stream.get() == stream_of(0).get() ? 0 : 1;
}

/// Some bytes that an operation touches.
struct Access {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  bool writes = false;
};

template <typename Value>
Access access_to(const Value* data, std::int64_t count, bool writes) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  return {begin, begin + count * static_cast<std::int64_t>(sizeof(Value)), writes};
}

bool conflict(const Access& a, const Access& b) {
  return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
}

/// How much of each stream has happened at some point.
using Clock = std::array<std::int64_t, 2>;

struct Operation {
  std::string name;
  int stream = 0;
  std::int64_t number = 0;  ///< On its stream, from 1 on.
  Clock known;              ///< What is sure to have happened before it.
  std::vector<Access> accesses;
};

/// Everything that one rank enqueues, and in which order the streams are sure to run it.
class Recorder {
 public:
  void add(const std::string& name, StreamRef stream, std::vector<Access> accesses) {
    const int at = index_of(stream);
    Clock& clock = clocks_[static_cast<std::size_t>(at)];
    const std::int64_t number = ++clock[static_cast<std::size_t>(at)];
    operations_.push_back({name, at, number, clock, std::move(accesses)});
  }

  Clock clock(int stream) const { return clocks_[static_cast<std::size_t>(stream)]; }

  void wait(int stream, const Clock& until) {
    Clock& mine = clocks_[static_cast<std::size_t>(stream)];
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = std::max(mine[i], until[i]);
  }

  /// Pairs of operations on the same bytes that no wait orders.
  std::vector<std::string> races() const {
    std::vector<std::string> found;
    for (std::size_t later = 0; later < operations_.size(); ++later) {
      for (std::size_t first = 0; first < later; ++first) {
        const Operation& a = operations_[first];
        const Operation& b = operations_[later];
        const bool is_ordered = b.known[static_cast<std::size_t>(a.stream)] >= a.number;
        if (!is_ordered && touch(a, b)) found.push_back(a.name + " and " + b.name);
      }
    }
    return found;
  }

  /// How much of the side stream has surely happened before each operation of this name.
  Mix known_before(const std::string& name) const {
    Mix known;
    for (const Operation& operation : operations_) {
      if (operation.name == name) known.push_back(operation.known[1]);
    }
    return known;
  }

  std::vector<std::string> names_on(int stream) const {
    std::vector<std::string> names;
    for (const Operation& operation : operations_) {
      const bool is_repeated = !names.empty() && names.back() == operation.name;
      if (operation.stream == stream && !is_repeated) names.push_back(operation.name);
    }
    return names;
  }

 private:
  static bool touch(const Operation& a, const Operation& b) {
    return std::ranges::any_of(a.accesses, [&](const Access& one) {
      return std::ranges::any_of(b.accesses, [&](const Access& two) { return conflict(one, two); });
    });
  }

  std::vector<Operation> operations_;
  std::array<Clock, 2> clocks_{};
};

/// Waits that a test can leave out.
enum class Missing { Nothing, Follow, Wait };

class WatchedSideStream final : public detail::SideStream {
 public:
  WatchedSideStream(Recorder& recorder, Missing missing) : recorder_(recorder), missing_(missing) {}

  StreamRef ref() const override { return stream_of(1); }
  void follow(StreamRef stream) override {
    if (missing_ != Missing::Follow) recorder_.wait(1, recorder_.clock(index_of(stream)));
  }
  void mark(int slot) override { marks_[static_cast<std::size_t>(slot)] = recorder_.clock(1); }
  void make_wait(StreamRef stream, int slot) override {
    if (missing_ == Missing::Wait) return;
    recorder_.wait(index_of(stream), marks_[static_cast<std::size_t>(slot)]);
  }

 private:
  Recorder& recorder_;
  Missing missing_;
  std::array<Clock, 2> marks_{};
};

/// The operations of the CPU, written down. Rectangles count from their first byte to their last.
class WatchedOperations final : public detail::GateOperations {
 public:
  explicit WatchedOperations(Recorder& recorder) : recorder_(recorder) {}

  std::size_t product_bytes() const override { return 512; }
  std::size_t tile_bytes(std::int64_t tokens, std::int64_t rows) const override {
    return cpu_->tile_bytes(tokens, rows);
  }

  void product(const MatmulShape& shape, const BF16* x, const BF16* w, void* out, DType out_dtype,
               std::span<std::byte> scratch, StreamRef stream) override {
    const std::int64_t bytes = shape.m * shape.n * element_bytes(out_dtype);
    recorder_.add("product", stream,
                  {access_to(x, shape.m * shape.k, false),
                   access_to(static_cast<std::byte*>(out), bytes, true),
                   access_to(scratch.data(), std::ssize(scratch), true)});
    cpu_->product(shape, x, w, out, out_dtype, scratch, stream);
  }

  void multiply(const detail::Projection& z, const detail::GateTarget& target,
                StreamRef stream) override {
    const std::int64_t bytes = z.tokens * z.rows * element_bytes(z.dtype);
    recorder_.add("gate", stream,
                  {access_to(static_cast<const std::byte*>(z.data), bytes, false),
                   access_to(target.out, z.tokens * target.out_stride, true)});
    cpu_->multiply(z, target, stream);
  }

  void gated_product(const detail::GatedProduct& product, StreamRef stream) override {
    cpu_->gated_product(product, stream);
  }

  void copy_rows(const detail::RowCopy& copy, StreamRef stream) override {
    recorder_.add("pack", stream, {access_to(copy.to, copy.rows * copy.row_bytes, true)});
    cpu_->copy_rows(copy, stream);
  }

  void zero(std::span<std::byte> memory, StreamRef stream) override {
    if (memory.empty()) return;
    recorder_.add("product", stream, {access_to(memory.data(), std::ssize(memory), true)});
    cpu_->zero(memory, stream);
  }

 private:
  Recorder& recorder_;
  std::unique_ptr<detail::GateOperations> cpu_ = detail::make_gate_operations_cpu();
};

/// A rank's communicator, written down.
class WatchedCommunicator final : public test::ForwardingCommunicator {
 public:
  WatchedCommunicator(Communicator& comm, Recorder& recorder)
      : ForwardingCommunicator(comm),
        recorder_(recorder) {}

  void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                    std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                    StreamRef stream) override {
    write_down("all_to_all", in, out, stream);
    ForwardingCommunicator::all_to_all_v(in, in_bytes, out, out_bytes, stream);
  }
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                      StreamRef stream) override {
    write_down("reduce_scatter", in, out, stream);
    ForwardingCommunicator::reduce_scatter(in, out, dtype, stream);
  }

 private:
  void write_down(const char* name, std::span<const std::byte> in, std::span<std::byte> out,
                  StreamRef stream) {
    recorder_.add(name, stream,
                  {access_to(in.data(), std::ssize(in), false),
                   access_to(out.data(), std::ssize(out), true)});
  }

  Recorder& recorder_;
};

constexpr GateShape kOverlapShape{.hidden_size = 52, .output_size = 83};
constexpr std::int64_t kBlock = 16;

/// One rank's k_shard, without the GateLinear around it.
struct WatchedRank {
  WatchedRank(Communicator& host, const GateProblem& problem, Missing missing, bool does_overlap)
      : comm(host, recorder),
        side(recorder, missing),
        operations(recorder) {
    gate.shape = problem.shape;
    gate.comm = &comm;
    gate.rank = comm.rank();
    gate.ranks = comm.size();
    gate.block_tokens = kBlock;
    gate.operations = &operations;
    if (does_overlap) gate.side = &side;
    const IndexRange columns = gate.columns_of(gate.rank);
    weight =
        detail::keep_rows_cpu({problem.weight.data() + columns.begin, problem.shape.hidden_size,
                               problem.shape.output_size, columns.size()});
    gate.layer.shape = problem.shape;
    gate.layer.rows = weight.get();
  }

  std::vector<BF16> run(const GateProblem& problem) {
    std::vector<BF16> out(problem.attn_out[static_cast<std::size_t>(gate.rank)].size());
    const GateCall call = call_of(problem, gate.rank, out);
    const std::int64_t longest = *std::ranges::max_element(problem.tokens);
    const std::size_t bytes = detail::workspace_of(gate, GateStrategy::KShard, longest);
    std::vector<std::byte> memory(bytes);
    detail::Arena arena(memory);
    const GateRun gate_run{.call = &call,
                           .rows = {{{IndexRange{0, call.tokens}, IndexRange{}}}},
                           .counts = problem.tokens,
                           .head_width = 1,
                           .stream = stream_of(0)};
    run_k_shard(gate, gate_run, arena);
    EXPECT_EQ(arena.used(), bytes);
    return out;
  }

  Recorder recorder;
  WatchedCommunicator comm;
  WatchedSideStream side;
  WatchedOperations operations;
  std::unique_ptr<detail::PeerRows> weight;
  GateContext gate;
};

class KShardOverlap : public testing::TestWithParam<Mix> {};

TEST_P(KShardOverlap, HasTheBitsOfBlocksInTurnAndNoRace) {
  const GateProblem problem = make_problem(kOverlapShape, GetParam());
  run_thread_group(problem.ranks(), [&](Communicator& host) {
    WatchedRank in_turn(host, problem, Missing::Nothing, false);
    WatchedRank overlapped(host, problem, Missing::Nothing, true);
    EXPECT_EQ(overlapped.run(problem), in_turn.run(problem));
    EXPECT_EQ(overlapped.recorder.races(), std::vector<std::string>{});
    EXPECT_TRUE(in_turn.recorder.names_on(1).empty());
  });
}

INSTANTIATE_TEST_SUITE_P(Mixes, KShardOverlap,
                         testing::Values(Mix{0, 0}, Mix{15, 16}, Mix{16, 17}, Mix{32, 0},
                                         Mix{33, 48}, Mix{100, 3, 70}, Mix{1, 0, 0, 65}));

TEST(KShardOverlapOrder, ProductsAreBesideTheExchangesOfTheirNeighbours) {
  const GateProblem problem = make_problem(kOverlapShape, {48, 48});
  run_thread_group(2, [&](Communicator& host) {
    WatchedRank rank(host, problem, Missing::Nothing, true);
    rank.run(problem);
    using Names = std::vector<std::string>;
    EXPECT_EQ(rank.recorder.names_on(0),
              (Names{"pack", "all_to_all", "pack", "all_to_all", "reduce_scatter", "gate", "pack",
                     "all_to_all", "reduce_scatter", "gate", "reduce_scatter", "gate"}));
    EXPECT_EQ(rank.recorder.names_on(1), Names{"product"});
    // A full block is one product for both ranks. Sums wait for their own block alone, and an exchange
    // for the block before the one that is being multiplied.
    EXPECT_EQ(rank.recorder.known_before("reduce_scatter"), (Mix{1, 2, 3}));
    EXPECT_EQ(rank.recorder.known_before("all_to_all"), (Mix{0, 0, 1}));
  });
}

TEST(KShardOverlapOrder, OneBlockStaysOnTheCallersStreamInOneSetOfBuffers) {
  const GateProblem problem = make_problem(kOverlapShape, {kBlock, 3});
  run_thread_group(2, [&](Communicator& host) {
    WatchedRank in_turn(host, problem, Missing::Nothing, false);
    WatchedRank overlapped(host, problem, Missing::Nothing, true);
    overlapped.run(problem);
    EXPECT_TRUE(overlapped.recorder.names_on(1).empty());
    const auto bytes = [](const WatchedRank& rank, std::int64_t tokens) {
      return detail::workspace_of(rank.gate, GateStrategy::KShard, tokens);
    };
    EXPECT_EQ(bytes(overlapped, kBlock), bytes(in_turn, kBlock));
    EXPECT_GT(bytes(overlapped, kBlock + 1), bytes(in_turn, kBlock + 1));
  });
}

TEST(KShardOverlapOrder, EveryWaitIsNeeded) {
  const GateProblem problem = make_problem(kOverlapShape, {48, 48});
  for (const Missing missing : {Missing::Follow, Missing::Wait}) {
    run_thread_group(2, [&](Communicator& host) {
      WatchedRank rank(host, problem, missing, true);
      rank.run(problem);
      EXPECT_FALSE(rank.recorder.races().empty()) << static_cast<int>(missing);
    });
  }
}

TEST(KShardOverlapBudget, TwoSetsOfBuffersShareTheLimit) {
  const GateProblem problem = make_problem(kOverlapShape, {1, 1});
  run_thread_group(2, [&](Communicator& host) {
    WatchedRank in_turn(host, problem, Missing::Nothing, false);
    WatchedRank overlapped(host, problem, Missing::Nothing, true);
    constexpr std::array kOnly{GateStrategy::KShard};
    for (const std::size_t limit : {20'000U, 300'000U, 5'000'000U}) {
      const auto block_of = [&](const WatchedRank& rank) {
        return detail::choose_block(rank.gate, kOnly, 0, limit);
      };
      const auto bytes_of = [&](WatchedRank& rank, std::int64_t block) {
        rank.gate.block_tokens = block;
        return detail::workspace_of_any(rank.gate, kOnly);
      };
      const std::int64_t block = block_of(overlapped);
      EXPECT_LE(bytes_of(overlapped, block), limit);
      EXPECT_GT(bytes_of(overlapped, block + 1), limit);
      // sent and sum are there once, what both streams touch twice.
      EXPECT_GT(block * 2, block_of(in_turn));
      EXPECT_LT(block, block_of(in_turn));
    }
  });
}

TEST(KShardOverlapBudget, IsThePlannersWithoutALimit) {
  const GateProblem problem = make_problem(kOverlapShape, {1, 1, 1});
  run_thread_group(3, [&](Communicator& host) {
    constexpr std::array kOnly{GateStrategy::KShard};
    for (const bool does_overlap : {false, true}) {
      const WatchedRank rank(host, problem, Missing::Nothing, does_overlap);
      EXPECT_EQ(detail::choose_block(rank.gate, kOnly, 0, {}), default_gate_block(3, does_overlap));
    }
  });
}

}  // namespace
}  // namespace penstock
