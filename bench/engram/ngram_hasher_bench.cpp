#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "penstock/core/parallel.hpp"
#include "penstock/engram/ngram_hasher.hpp"

namespace penstock {
namespace {

constexpr std::int32_t kTokens = 99092;

EngramConfig released_config() {
  return {.layer_ids = {1, 14},
          .num_embeddings = {384006168, 384016682},
          .max_ngram_size = 4,
          .num_heads = 8,
          .head_dim = 256,
          .vocab_size = 16000000,
          .pad_token_id = 2,
          .compressed_vocab_size = kTokens};
}

/// A step of the released model; items are tokens times layers.
///
/// Axes: tokens in the step, tokens a request, threads.
void hash_step(benchmark::State& state) {
  const auto tokens = static_cast<std::size_t>(state.range(0));
  const std::int64_t request_tokens = state.range(1);
  const int threads_before = parallel_threads();
  set_parallel_threads(static_cast<int>(state.range(2)));
  const NgramHasher hasher(HashLayout(released_config()), TokenMap::identity(kTokens),
                           kImageTokenId);
  std::mt19937 random(1);
  std::vector<std::int32_t> ids(tokens);
  for (auto& id : ids) id = static_cast<std::int32_t>(random() % kTokens);
  std::vector<std::int32_t> query_start{0};
  std::vector<std::int64_t> positions;
  for (std::size_t i = 0; i < tokens; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    positions.push_back(1000 + at % request_tokens);
    if ((at + 1) % request_tokens == 0) query_start.push_back(static_cast<std::int32_t>(i) + 1);
  }
  const std::vector<std::int32_t> lookback((query_start.size() - 1) * 3, 17);
  std::vector<std::int32_t> out(tokens * 48);
  for (auto _ : state) {
    hasher.hash({ids, query_start, positions, lookback}, out);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(tokens) * 2);
  set_parallel_threads(threads_before);
}
BENCHMARK(hash_step)
    ->ArgNames({"tokens", "request_tokens", "threads"})
    ->Args({1, 1, 1})
    ->Args({256, 1, 1})
    ->Args({8192, 8192, 1})
    ->Args({8192, 8192, 2})
    ->Args({65536, 8192, 2})
    ->UseRealTime();

}  // namespace
}  // namespace penstock
