#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench/bench.hpp"
#include "cli/bench/largest_of.hpp"
#include "cli/bench/lookup_options.hpp"
#include "cli/bench/lookup_rank.hpp"
#include "cli/bench/random_numbers.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/engram_injection.hpp"
#include "penstock/reader/prefetcher.hpp"

namespace penstock::cli {
namespace {

std::vector<BF16> operands(std::int64_t count) {
  return random_bf16(count, 1.0F, 0x9E3779B97F4A7C15);
}

/// The model's own work before rows are needed: products of [tokens, 4096] and [8192, 4096]^T.
class ModelWork {
 public:
  ModelWork(Device device, int products, std::int64_t tokens)
      : products_(products),
        injection_(weights(), device, tokens),
        x_(random_input(device, tokens)) {}

  void enqueue(StreamRef stream) {
    for (int i = 0; i < products_; ++i) injection_.project(x_.as<const BF16>(), stream);
  }

 private:
  static constexpr std::int64_t kInput = 4096;
  static constexpr int kOutput = 8192;

  static Buffer random_input(Device device, std::int64_t tokens) {
    const std::vector<BF16> values = operands(tokens * kInput);
    return Buffer::copy_of(std::as_bytes(std::span(values)), device);
  }

  /// An Engram projection of that size: one product, and nothing else.
  static EngramWeights weights() {
    EngramWeights weights;
    weights.hc_mult = 1;
    weights.dim = kOutput / 2;
    weights.row_width = kInput;
    weights.wkv = operands(kOutput * kInput);
    weights.q_weight = weights.k_weight = operands(weights.dim);
    return weights;
  }

  int products_;
  EngramInjection injection_;
  Buffer x_;
};

class PrefetchBench {
 public:
  PrefetchBench(const LookupBenchOptions& options, Communicator& comm)
      : options_(options),
        rank_(options, comm),
        side_(rank_.device()),
        work_(rank_.device(), options.work, options.work_tokens),
        prefetcher_(rank_.table(), {.max_tokens = rank_.max_tokens()}) {}

  void run() {
    for (const std::int64_t tokens : options_.tokens) {
      if (rank_.table().view().num_parts == 1) engine(tokens);
      penstock(tokens);
    }
  }

 private:
  StreamRef stream() const { return rank_.stream().ref(); }

  /// Half of the multiprocessors on a side stream.
  void engine(std::int64_t tokens) {
    const auto read = [&](StreamRef where) {
      rank_.read_as_engine(tokens, EngineGrid::Half, where);
    };
    measure(
        "engine_half_grid", tokens, [&] { read(stream()); },
        [&] {
          side_.fork(stream());
          read(side_.ref());
        },
        [&] { side_.join(stream()); });
  }

  void penstock(std::int64_t tokens) {
    measure(
        "prefetcher", tokens,
        [&] { prefetcher_.start(rank_.ids(tokens), stream()).wait(stream()); },
        [&] { ticket_ = prefetcher_.start(rank_.ids(tokens), stream()); },
        [&] {
          ticket_.wait(stream());
          ticket_.release(stream());
        });
  }

  /// Times the read alone, then the work without it and beside it in turns. Work comes before each
  /// measurement too, so that all find the GPU as a busy model does: its clock falls under load, and
  /// what came after a rest would look fast. The wait is what the stream spends in `join`.
  void measure(const char* way, std::int64_t tokens, const std::function<void()>& read,
               const std::function<void()>& start, const std::function<void()>& join) {
    const double read_ms = rank_.measure(read, 1).median;
    const auto work = [&] { work_.enqueue(stream()); };
    const auto beside = [&] {
      start();
      work();
      before_.record(stream());
      join();
      after_.record(stream());
    };
    std::vector<double> alone;
    std::vector<double> together;
    std::vector<double> slowed;
    std::vector<double> waits;
    for (int i = 0; i < rank_.repeat(); ++i) {
      alone.push_back(rank_.time(work, work));
      together.push_back(rank_.time(beside, work));
      slowed.push_back((together.back() / alone.back() - 1) * 100);
      const std::chrono::duration<double, std::milli> wait = after_.since(before_);
      waits.push_back(largest_of(rank_.comm(), wait.count()));
    }
    if (rank_.comm().rank() != 0) return;
    const double wait_ms = spread_of(waits).median;
    const nlohmann::ordered_json line{{"bench", "prefetch"},
                                      {"placement", options_.placement},
                                      {"ranks", rank_.comm().size()},
                                      {"tokens", tokens},
                                      {"products", options_.work},
                                      {"product_tokens", options_.work_tokens},
                                      {"way", way},
                                      {"work_alone_ms", spread_of(alone).median},
                                      {"read_alone_ms", read_ms},
                                      {"together_ms", spread_of(together).median},
                                      {"slowed_percent", spread_of(slowed).median},
                                      {"spread_percent", spread_of(slowed).quartiles},
                                      {"waited_ms", wait_ms},
                                      {"hidden_percent", 100 * (1 - wait_ms / read_ms)}};
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  }

  const LookupBenchOptions& options_;
  LookupRank rank_;
  SideStream side_;
  ModelWork work_;
  Prefetcher prefetcher_;
  Ticket ticket_;
  Event before_ = Event::create(rank_.device());
  Event after_ = Event::create(rank_.device());
};

int run_prefetch_bench(const LookupBenchOptions& options) {
  check_lookup_options("bench prefetch", options);
  expects(options.work >= 1 && options.work_tokens >= 1,
          "bench prefetch: --work and --work-tokens need at least 1");
  if (options.device != "cuda") {
    throw Error(ErrorCode::InvalidArgument,
                "bench prefetch: needs --device cuda; on the CPU `run` tells what was hidden");
  }
  run_thread_group(options.ranks, [&](Communicator& comm) { PrefetchBench(options, comm).run(); });
  return 0;
}

}  // namespace

void add_bench_prefetch(CLI::App& bench, Action& action) {
  CLI::App* prefetch = bench.add_subcommand(
      "prefetch", "Rows read beside matrix products: what is hidden, and what it costs them");
  auto options = std::make_shared<LookupBenchOptions>();
  options->device = "cuda";
  options->tokens = {8192};
  add_lookup_options(*prefetch, *options);
  prefetch->add_option("--work", options->work, "Products before the rows are needed")
      ->capture_default_str();
  prefetch->add_option("--work-tokens", options->work_tokens, "Tokens of each product")
      ->capture_default_str();
  prefetch->footer("Needs a GPU. Example: penstock bench prefetch --gib 24");
  prefetch->callback(
      [&action, options] { action = [options] { return run_prefetch_bench(*options); }; });
}

}  // namespace penstock::cli
