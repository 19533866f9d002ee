#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gate/gate_ranks.hpp"

namespace penstock {
namespace {

using testing::HasSubstr;

constexpr GateShape kShape{.hidden_size = 24, .output_size = 40};

std::vector<BF16> zeros(std::int64_t count) {
  return std::vector<BF16>(static_cast<std::size_t>(count));
}

/// Runs `body` on two ranks and expects the same code and text on both.
void expect_on_all_ranks(ErrorCode code, const std::string& text,
                         const std::function<void(Communicator&)>& body) {
  run_thread_group(2, [&](Communicator& comm) {
    const auto [found, message] = error_of([&] { body(comm); });
    EXPECT_EQ(found, code) << message;
    EXPECT_THAT(message, HasSubstr(text));
    comm.barrier();  // the group is still alive
  });
}

/// Makes a gate whose options depend on the rank.
void make_gate(Communicator& comm, const GateOptions& options, GateShape shape = kShape,
               WeightPart part = WeightPart::Full, std::int64_t missing = 0) {
  const auto weight = zeros(shape.hidden_size * shape.output_size - missing);
  const GateLinear gate(shape, weight, part, &comm, options);
}

TEST(GateConstruction, RanksThatDisagreeAllRaise) {
  const std::vector<std::pair<std::string, std::function<void(GateOptions&)>>> changes{
      {"strategy is auto on rank 0 and n_shard on rank 1",
       [](GateOptions& o) { o.strategy = GateStrategy::NShard; }},
      {"rounding", [](GateOptions& o) { o.rounding = GateRounding::ThreeTimes; }},
      {"k_shard_sums is BF16", [](GateOptions& o) { o.k_shard_sums = DType::F32; }},
      {"n_shard_projections", [](GateOptions& o) { o.n_shard_projections = DType::BF16; }},
      {"max_temp_bytes is none on rank 0 and 1000000 on rank 1",
       [](GateOptions& o) { o.max_temp_bytes = 1'000'000; }},
      {"max_resident_bytes", [](GateOptions& o) { o.max_resident_bytes = 5; }},
      {"rates", [](GateOptions& o) { o.window_seconds = 1; }},
      {"check_calls", [](GateOptions& o) { o.check_calls = true; }}};
  for (const auto& [text, change] : changes) {
    expect_on_all_ranks(ErrorCode::InvalidArgument, text, [&](Communicator& comm) {
      GateOptions options;
      if (comm.rank() == 1) change(options);
      make_gate(comm, options);
    });
  }
  expect_on_all_ranks(ErrorCode::InvalidArgument, "hidden_size is 24 on rank 0 and 25 on rank 1",
                      [](Communicator& comm) {
                        GateShape shape = kShape;
                        shape.hidden_size += comm.rank();
                        make_gate(comm, {}, shape);
                      });
}

TEST(GateConstruction, AnErrorOfOneRankReachesAll) {
  expect_on_all_ranks(
      ErrorCode::InvalidArgument, "weight has 959 elements, full of [40, 24]",
      [](Communicator& comm) { make_gate(comm, {}, kShape, WeightPart::Full, comm.rank()); });
}

TEST(GateConstruction, PartsThatAStrategyCannotUse) {
  struct Row {
    GateStrategy strategy;
    WeightPart part;
    std::int64_t elements;
  };
  for (const Row& row : {Row{GateStrategy::KShard, WeightPart::Rows, 20 * 24},
                         Row{GateStrategy::NShard, WeightPart::Columns, 40 * 12},
                         Row{GateStrategy::WeightGather, WeightPart::Columns, 40 * 12},
                         Row{GateStrategy::Replicated, WeightPart::Rows, 20 * 24}}) {
    expect_on_all_ranks(ErrorCode::InvalidArgument, "the strategy needs", [&](Communicator& comm) {
      GateOptions options;
      options.strategy = row.strategy;
      const auto weight = zeros(row.elements);
      const GateLinear gate(kShape, weight, row.part, &comm, options);
    });
  }
}

TEST(GateConstruction, OptionsThatMeanNothing) {
  const auto refused = [](GateShape shape, const GateOptions& options) {
    const auto weight = zeros(std::max<std::int64_t>(0, shape.hidden_size * shape.output_size));
    return error_of(
               [&] { const GateLinear gate(shape, weight, WeightPart::Full, nullptr, options); })
        .first;
  };
  EXPECT_EQ(refused({0, 8, {}}, {}), ErrorCode::InvalidArgument);
  EXPECT_EQ(refused({8, -1, {}}, {}), ErrorCode::InvalidArgument);
  GateOptions options;
  options.k_shard_sums = DType::F16;
  EXPECT_EQ(refused(kShape, options), ErrorCode::InvalidArgument);
  options = {};
  options.n_shard_projections = DType::F8E4M3;
  EXPECT_EQ(refused(kShape, options), ErrorCode::InvalidArgument);
}

TEST(GateConstruction, TheLeastMemoryLimitIsNamedAndWorks) {
  run_thread_group(2, [](Communicator& comm) {
    GateOptions options;
    options.strategy = GateStrategy::KShard;
    options.max_temp_bytes = 10;
    const auto [code, message] = error_of([&] { make_gate(comm, options); });
    EXPECT_EQ(code, ErrorCode::InvalidArgument);
    EXPECT_THAT(message, HasSubstr("max_temp_bytes is 10, needs at least "));
    options.max_temp_bytes = std::stoul(message.substr(message.rfind(' ')));
    EXPECT_NO_THROW(make_gate(comm, options));
    *options.max_temp_bytes -= 1;
    EXPECT_EQ(error_of([&] { make_gate(comm, options); }).first, ErrorCode::InvalidArgument);
  });
}

TEST(GateConstruction, GroupsOfAGateDivideTheRanks) {
  run_thread_group(4, [](Communicator& comm) {
    for (const int size : {0, 3, 5, -2}) {
      EXPECT_EQ(error_of([&] { split_gate_group(comm, size); }).first, ErrorCode::InvalidArgument);
    }
    const auto pair = split_gate_group(comm, 2);
    EXPECT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), comm.rank() % 2);
    EXPECT_EQ(split_gate_group(comm, std::nullopt)->size(), 4);
  });
}

/// One wrong call, and a part of what the error must say.
struct WrongCall {
  std::string text;
  std::function<void(GateCall&)> change;
};

TEST(GateForward, WrongCallsChangeNothing) {
  const GateProblem problem = make_problem(kShape, {5});
  const GateLinear made(kShape, problem.weight, WeightPart::Full);
  std::vector<BF16> out(problem.attn_out[0].size(), to_bf16(3.0F));
  std::vector<BF16> both = problem.attn_out[0];
  const std::vector<std::int64_t> two{5, 5};
  const std::vector<std::int64_t> other{4};
  const std::vector<WrongCall> calls{
      {"tokens is negative", [](GateCall& c) { c.tokens = -1; }},
      {"x has 120 elements, 6 tokens need 144", [](GateCall& c) { c.tokens = 6; }},
      {"attn_out has 39 columns, elementwise gating needs 40",
       [](GateCall& c) { c.attn_width = 39; }},
      {"attn_out has 199 elements", [](GateCall& c) { c.attn_out = c.attn_out.first(199); }},
      {"out has 199 elements", [](GateCall& c) { c.out = c.out.first(199); }},
      {"overlap without being the same",
       [&](GateCall& c) {
         both.resize(both.size() + 1);
         c.attn_out = std::span(both).first(200);
         c.out = std::span(both).subspan(1);
       }},
      {"token_counts has 2 entries, the group has 1", [&](GateCall& c) { c.token_counts = two; }},
      {"token_counts is 4 for this rank", [&](GateCall& c) { c.token_counts = other; }},
      {"identical_rows is [3, 6)", [](GateCall& c) { c.identical_rows = {3, 6}; }},
      {"identical_rows is [3, 2)", [](GateCall& c) { c.identical_rows = {3, 2}; }}};
  for (const WrongCall& wrong : calls) {
    GateLinear gate(kShape, problem.weight, WeightPart::Full);
    GateCall call = call_of(problem, 0, out);
    wrong.change(call);
    const auto [code, message] = error_of([&] { gate.forward(call); });
    EXPECT_EQ(code, ErrorCode::InvalidArgument);
    EXPECT_THAT(message, HasSubstr(wrong.text));
    for (const BF16 value : out) EXPECT_EQ(value, to_bf16(3.0F));
  }
}

TEST(GateForward, HeadwiseWidthsAreMultiplesOfTheHeads) {
  const GateShape shape{.hidden_size = 8, .output_size = 4, .gating = GatingType::Headwise};
  GateProblem problem = make_problem(shape, {2}, 3);
  GateLinear gate(shape, problem.weight, WeightPart::Full);
  problem.attn_width = 13;
  problem.attn_out[0].resize(26);
  std::vector<BF16> out(26);
  EXPECT_THAT(error_of([&] { gate.forward(call_of(problem, 0, out)); }).second,
              HasSubstr("13 columns, headwise gating needs a multiple of the 4 heads"));
}

TEST(GateForward, CheckedCallsThatDisagreeAllRaiseAndLeaveTheGroupAlive) {
  const GateProblem problem = make_problem(kShape, {4, 6});
  run_thread_group(2, [&](Communicator& comm) {
    GateOptions options;
    options.check_calls = true;
    for (const auto strategy : {GateStrategy::NShard, GateStrategy::WeightGather}) {
      options.strategy = strategy;
      GateLinear gate(kShape, problem.weight, WeightPart::Full, &comm, options);
      std::vector<BF16> out(problem.attn_out[static_cast<std::size_t>(comm.rank())].size());
      const GateCall good = call_of(problem, comm.rank(), out);
      const auto expect_refused = [&](const GateCall& call, const std::string& text) {
        const auto [code, message] = error_of([&] { gate.forward(call); });
        EXPECT_EQ(code, ErrorCode::InvalidArgument);
        EXPECT_THAT(message, HasSubstr(text));
      };
      GateCall counts = good;
      const std::vector<std::int64_t> mine =
          comm.rank() == 0 ? std::vector<std::int64_t>{4, 7} : std::vector<std::int64_t>{4, 6};
      counts.token_counts = mine;
      expect_refused(counts, "token_counts differ between rank 0 and rank 1");
      GateCall identical = good;
      identical.identical_rows = {0, 1 + comm.rank()};
      expect_refused(identical, "numbers of identical rows differ");
      identical.identical_rows = {0, 2};  // as many, but of other contents
      expect_refused(identical, "contents of identical rows differ");
      GateCall broken = good;
      if (comm.rank() == 1) broken.attn_width = 7;
      const auto [code, message] = error_of([&] { gate.forward(broken); });
      EXPECT_EQ(code, ErrorCode::InvalidArgument);
      EXPECT_THAT(message, HasSubstr(comm.rank() == 1 ? "7 columns" : "rank 1 is invalid"));
      EXPECT_NO_THROW(gate.forward(good));
    }
  });
}

TEST(GateForward, UnequalCountsOfARankAreFoundBeforeAnythingMoves) {
  // Without check_calls the communicator compares the sizes of its own arguments.
  const GateProblem problem = make_problem(kShape, {4, 6});
  CommOptions quick;
  quick.deadline = std::chrono::seconds(10);
  std::atomic<int> raised{0};
  const auto body = [&](Communicator& comm) {
    GateOptions options;
    options.strategy = GateStrategy::NShard;
    GateLinear gate(kShape, problem.weight, WeightPart::Full, &comm, options);
    std::vector<BF16> out(problem.attn_out[static_cast<std::size_t>(comm.rank())].size());
    GateCall call = call_of(problem, comm.rank(), out);
    const std::vector<std::int64_t> counts =
        comm.rank() == 0 ? std::vector<std::int64_t>{4, 300} : std::vector<std::int64_t>{4, 6};
    call.token_counts = counts;
    if (error_of([&] { gate.forward(call); }).first == ErrorCode::InvalidArgument) ++raised;
  };
  run_thread_group(2, body, quick);
  EXPECT_EQ(raised.load(), 2);
}

TEST(GateForward, ARankThatFailsInAnExchangeFailsTheOthers) {
  const GateProblem problem = make_problem(kShape, {4, 6, 2});
  std::atomic<int> failed{0};
  run_thread_group(3, [&](Communicator& comm) {
    GateOptions options;
    options.strategy = GateStrategy::NShard;
    GateLinear gate(kShape, problem.weight, WeightPart::Full, &comm, options);
    if (comm.rank() == 1) return comm.abort("out of luck");
    std::vector<BF16> out(problem.attn_out[static_cast<std::size_t>(comm.rank())].size());
    GateCall call = call_of(problem, comm.rank(), out);
    call.token_counts = problem.tokens;
    const auto [code, message] = error_of([&] { gate.forward(call); });
    EXPECT_EQ(code, ErrorCode::PeerFailed);
    EXPECT_THAT(message, HasSubstr("out of luck"));
    ++failed;
  });
  EXPECT_EQ(failed.load(), 2);
}

TEST(GateForward, RanksWithoutTokensNeedNotComeWhereRowsAreRead) {
  const GateProblem problem = make_problem(kShape, {4, 0, 7});
  const auto expected = run_alone(problem);
  run_thread_group(3, [&](Communicator& comm) {
    GateOptions options;
    options.strategy = GateStrategy::WeightGather;
    GateLinear gate(kShape, problem.weight, WeightPart::Full, &comm, options);
    const auto r = static_cast<std::size_t>(comm.rank());
    std::vector<BF16> out(problem.attn_out[r].size());
    for (int step = 0; step < 1000 && comm.rank() != 1; ++step) {
      if (step % 3 != comm.rank()) gate.forward(call_of(problem, comm.rank(), out));
    }
    EXPECT_EQ(out, expected[r]);
    comm.barrier();
  });
}

}  // namespace
}  // namespace penstock
