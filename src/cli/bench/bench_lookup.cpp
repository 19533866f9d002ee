#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>
#include <string>

#include "cli/bench/bench.hpp"
#include "cli/bench/exchanged_lookup.hpp"
#include "cli/bench/lookup_options.hpp"
#include "cli/bench/lookup_rank.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

constexpr int kReadsOfManyRanks = 8;  // so that all ranks read at once, whoever began first

/// One rank's measurements of all ways, in turns of token counts.
class LookupBench {
 public:
  LookupBench(const LookupBenchOptions& options, Communicator& comm)
      : options_(options),
        rank_(options, comm) {}

  void run() {
    report_table();
    const bool is_on_gpu = rank_.device().kind == DeviceKind::Cuda;
    const bool is_spread = rank_.table().view().num_parts > 1;
    for (const std::int64_t tokens : options_.tokens) {
      baseline_ms_ = 0;
      if (!is_on_gpu) {
        time("copy_rows", tokens, [&] { rank_.copy_rows(tokens); });
      } else if (is_spread) {
        time_exchange(tokens);
      } else {
        time("engine_full_grid", tokens,
             [&] { rank_.read_as_engine(tokens, EngineGrid::Full, rank_.stream().ref()); });
        time("engine_half_grid", tokens,
             [&] { rank_.read_as_engine(tokens, EngineGrid::Half, rank_.stream().ref()); });
      }
      if (rank_.reads_in_order(tokens)) {
        time("bf16_as_ids_come", tokens,
             [&] { rank_.read_as_ids_come(tokens, RowFormat::Bf16, rank_.stream().ref()); });
      }
      time("bf16", tokens, [&] { rank_.read(tokens, RowFormat::Bf16, rank_.stream().ref()); });
      time("records", tokens, [&] { rank_.read(tokens, RowFormat::Packed, rank_.stream().ref()); });
    }
  }

 private:
  void report_table() {
    if (rank_.comm().rank() != 0) return;
    const TableStatus& status = rank_.table().status();
    print({{"bench", "lookup"},
           {"placement", to_string(status.placement)},
           {"backing", status.backing},
           {"backing_choice", status.backing_choice},
           {"resident_bytes", status.resident_bytes},
           {"open_seconds", status.load_seconds}});
  }

  void time_exchange(std::int64_t tokens) {
    if (options_.in_graph || is_without_nccl_) return;  // its host part is no part of a graph
    try {
      if (!exchange_) exchange_ = std::make_unique<ExchangedLookup>(options_, rank_);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;
      is_without_nccl_ = true;
      if (rank_.comm().rank() == 0) {
        print({{"bench", "lookup"}, {"way", "engine_exchange"}, {"error", error.what()}});
      }
      return;
    }
    time("engine_exchange", tokens, [&] { exchange_->read(tokens, Exchange::GatherBf16); });
    time("record_exchange", tokens, [&] { exchange_->read(tokens, Exchange::SendRecords); });
  }

  /// The first way of a token count is what the others are compared with.
  void time(const char* way, std::int64_t tokens, const std::function<void()>& read) {
    const int reads =
        options_.in_graph ? kReadsInGraph : (rank_.comm().size() > 1 ? kReadsOfManyRanks : 1);
    const auto all = [&] {
      for (int i = 0; i < reads; ++i) read();
    };
    read();  // loads what it needs before a capture
    rank_.stream().synchronize();
    const Spread spread = options_.in_graph ? rank_.measure(capture(rank_.stream().ref(), all),
                                                            reads, [&] { rank_.renew_ids(); })
                                            : rank_.measure(all, reads);
    if (baseline_ms_ == 0) baseline_ms_ = spread.median;
    if (rank_.comm().rank() != 0) return;
    const double bytes = static_cast<double>(tokens) * kLookupColumns * kLookupRowBytes;
    print({{"bench", "lookup"},
           {"device", options_.device},
           {"placement", options_.placement},
           {"ranks", rank_.comm().size()},
           {"tokens", tokens},
           {"in_graph", options_.in_graph},
           {"way", way},
           {"ms", spread.median},
           {"min_ms", spread.least},
           {"spread_ms", spread.quartiles},
           {"gb_per_second", bytes / spread.median / 1e6},
           {"times_baseline", baseline_ms_ / spread.median}});
  }

  static void print(const nlohmann::ordered_json& line) {
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }

  const LookupBenchOptions& options_;
  LookupRank rank_;
  std::unique_ptr<ExchangedLookup> exchange_;
  bool is_without_nccl_ = false;
  double baseline_ms_ = 0;
};

int run_lookup_bench(const LookupBenchOptions& options) {
  check_lookup_options("bench lookup", options);
  if (options.in_graph && options.device != "cuda") {
    throw Error(ErrorCode::InvalidArgument, "bench lookup: --graph needs --device cuda");
  }
  run_thread_group(options.ranks, [&](Communicator& comm) { LookupBench(options, comm).run(); });
  return 0;
}

}  // namespace

void add_bench_lookup(CLI::App& bench, Action& action) {
  CLI::App* lookup = bench.add_subcommand(
      "lookup", "Rows of a table of 24 columns, beside the engines' technique (cpu: copied bytes)");
  auto options = std::make_shared<LookupBenchOptions>();
  add_lookup_options(*lookup, *options);
  lookup->add_flag("--graph", options->in_graph, "16 reads in a CUDA graph, times of one");
  lookup->callback(
      [&action, options] { action = [options] { return run_lookup_bench(*options); }; });
}

}  // namespace penstock::cli
