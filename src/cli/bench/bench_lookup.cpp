#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/bench.hpp"
#include "cli/bench/exchanged_lookup.hpp"
#include "cli/bench/lookup_options.hpp"
#include "cli/bench/lookup_rank.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

constexpr int kReadsOfManyRanks = 8;  // so that all ranks read at once, whoever began first

/// One way of reading, and how long each of its measurements took.
struct Way {
  const char* name;
  std::function<void()> read;
  std::function<void()> run = {};  ///< As many reads as a measurement has.
  std::vector<double> times = {};
};

/// One rank's measurements of all ways, in turns of token counts.
class LookupBench {
 public:
  LookupBench(const LookupBenchOptions& options, Communicator& comm)
      : options_(options),
        rank_(options, comm) {}

  void run() {
    report_table();
    for (const std::int64_t tokens : options_.tokens) compare(ways_of(tokens), tokens);
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

  /// The first one is what the others are compared with.
  std::vector<Way> ways_of(std::int64_t tokens) {
    std::vector<Way> ways;
    if (rank_.device().kind == DeviceKind::Cpu) {
      ways.push_back({"copy_rows", [this, tokens] { rank_.copy_rows(tokens); }});
    } else if (rank_.table().view().num_parts > 1) {
      add_exchanges(tokens, ways);
    } else {
      for (const EngineGrid grid : {EngineGrid::Full, EngineGrid::Half}) {
        ways.push_back(
            {grid == EngineGrid::Full ? "engine_full_grid" : "engine_half_grid",
             [this, tokens, grid] { rank_.read_as_engine(tokens, grid, rank_.stream().ref()); }});
      }
    }
    if (rank_.reads_in_order(tokens)) {
      ways.push_back({"bf16_as_ids_come", [this, tokens] {
                        rank_.read_as_ids_come(tokens, RowFormat::Bf16, rank_.stream().ref());
                      }});
    }
    for (const RowFormat format : {RowFormat::Bf16, RowFormat::Packed}) {
      ways.push_back({format == RowFormat::Bf16 ? "bf16" : "records", [this, tokens, format] {
                        rank_.read(tokens, format, rank_.stream().ref());
                      }});
    }
    return ways;
  }

  void add_exchanges(std::int64_t tokens, std::vector<Way>& ways) {
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
    for (const Exchange way : {Exchange::GatherBf16, Exchange::SendRecords}) {
      ways.push_back({way == Exchange::GatherBf16 ? "engine_exchange" : "record_exchange",
                      [this, tokens, way] { exchange_->read(tokens, way); }});
    }
  }

  /// Takes the ways in turns, so that none finds what another has just brought into a cache.
  void compare(std::vector<Way> ways, std::int64_t tokens) {
    const int reads =
        options_.in_graph ? kReadsInGraph : (rank_.comm().size() > 1 ? kReadsOfManyRanks : 1);
    for (Way& way : ways) {
      way.read();  // loads what it needs before a capture
      rank_.stream().synchronize();
      const auto all = [read = way.read, reads] {
        for (int i = 0; i < reads; ++i) read();
      };
      way.run = options_.in_graph ? capture(rank_.stream().ref(), all) : all;
    }
    std::function<void()> before;
    if (options_.in_graph) before = [this] { rank_.renew_ids(); };
    constexpr int kWarmUp = 3;
    for (int i = -kWarmUp; i < rank_.repeat(); ++i) {
      for (Way& way : ways) {
        const double milliseconds = rank_.time(way.run, before) / reads;
        if (i >= 0) way.times.push_back(milliseconds);
      }
    }
    if (rank_.comm().rank() != 0) return;
    const double baseline = spread_of(ways.front().times).median;
    for (const Way& way : ways) report(way, tokens, baseline);
  }

  void report(const Way& way, std::int64_t tokens, double baseline_ms) {
    const Spread spread = spread_of(way.times);
    const double bytes = static_cast<double>(tokens) * kLookupColumns * kLookupRowBytes;
    print({{"bench", "lookup"},
           {"device", options_.device},
           {"placement", options_.placement},
           {"ranks", rank_.comm().size()},
           {"tokens", tokens},
           {"in_graph", options_.in_graph},
           {"way", way.name},
           {"ms", spread.median},
           {"min_ms", spread.least},
           {"spread_ms", spread.quartiles},
           {"gb_per_second", bytes / spread.median / 1e6},
           {"times_baseline", baseline_ms / spread.median}});
  }

  static void print(const nlohmann::ordered_json& line) {
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }

  const LookupBenchOptions& options_;
  LookupRank rank_;
  std::unique_ptr<ExchangedLookup> exchange_;
  bool is_without_nccl_ = false;
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
  lookup->footer("Example: penstock bench lookup --gib 0.25 --tokens 64,1024");
  lookup->callback(
      [&action, options] { action = [options] { return run_lookup_bench(*options); }; });
}

}  // namespace penstock::cli
