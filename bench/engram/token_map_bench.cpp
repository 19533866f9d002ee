#include <benchmark/benchmark.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "engram/compress_vocabulary.hpp"
#include "penstock/checkpoint/tokenizer.hpp"
#include "penstock/engram/token_map.hpp"

namespace penstock {
namespace {

constexpr auto* kTokenizer = PENSTOCK_TEST_DATA "/golden/deepseek_v3_tokenizer.json.xz";

/// The whole way from a packed tokenizer.json of 128,815 tokens.
void build_token_map(benchmark::State& state) {
  for (auto _ : state)
    benchmark::DoNotOptimize(TokenMap::from_tokenizer(kTokenizer, 129280).size());
}
BENCHMARK(build_token_map)->Unit(benchmark::kMillisecond);

/// Decoding, normalising and numbering alone.
void compress_vocabulary(benchmark::State& state) {
  const TokenizerVocabulary vocabulary = load_tokenizer(kTokenizer);
  for (auto _ : state) {
    benchmark::DoNotOptimize(detail::compress_vocabulary(vocabulary.token_of_id).data());
  }
  state.SetItemsProcessed(state.iterations() *
                          static_cast<std::int64_t>(vocabulary.token_of_id.size()));
}
BENCHMARK(compress_vocabulary)->Unit(benchmark::kMillisecond);

/// From a saved map.
void load_token_map(benchmark::State& state) {
  const auto file = std::filesystem::temp_directory_path() / "penstock_bench.map";
  TokenMap::identity(129280).save(file);
  for (auto _ : state) benchmark::DoNotOptimize(TokenMap::load(file).size());
  std::filesystem::remove(file);
}
BENCHMARK(load_token_map)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace penstock
