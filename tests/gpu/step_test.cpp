// A whole step in one CUDA graph: hashes, two layers read ahead on a side stream, work of the model,
// projections and gates. Every replay has other tokens, and the CPU says what comes out.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "gpu/gpu_support.hpp"
#include "penstock/engram/engram_layer.hpp"
#include "penstock/engram/ngram_hasher.hpp"
#include "penstock/engram/ngram_hasher_cuda.hpp"
#include "penstock/table/row_source.hpp"
#include "support/engram_cases.hpp"

namespace penstock::gpu {
namespace {

constexpr std::int64_t kTokens = 48;
constexpr int kCopies = 2;
constexpr int kDim = 64;
constexpr std::size_t kHiddenSize = kTokens * kCopies * kDim;
using Values = std::vector<BF16>;

EngramConfig config_of_step() {
  EngramConfig config = testing_support::small_config();
  config.layer_ids = {1, 3};
  config.num_embeddings = {1000, 1000};
  return config;
}

Values random_values(std::size_t count, float size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  Values values(count);
  for (auto& value : values) value = to_bf16(normal(random));
  return values;
}

EngramWeights random_weights(std::int64_t row_width, std::uint32_t seed) {
  EngramWeights weights;
  weights.hc_mult = kCopies;
  weights.dim = kDim;
  weights.row_width = row_width;
  weights.eps = 1e-20F;
  weights.wkv =
      random_values(static_cast<std::size_t>((kCopies + 1) * kDim * row_width), 0.1F, seed);
  weights.q_weight = random_values(std::size_t{kCopies} * kDim, 1, seed + 1);
  weights.k_weight = random_values(std::size_t{kCopies} * kDim, 1, seed + 2);
  return weights;
}

EngramLayer open_layer(const HashLayout& layout, std::size_t index, Device device) {
  const EngramConfig& config = layout.config;
  const TableSpec spec{.layer_id = config.layer_ids[index],
                       .head_sizes = layout.primes[index],
                       .num_rows = layout.row_counts[index],
                       .head_dim = config.head_dim};
  Table table = Table::open(spec, make_random_rows(3, spec.layer_id, spec.num_rows, spec.head_dim),
                            {.placement = Placement::Host, .device = device});
  const std::int64_t width = std::int64_t{layout.num_columns()} * config.head_dim;
  EngramLayerOptions options;
  options.device = device;
  options.max_tokens = kTokens;
  return EngramLayer(std::move(table),
                     random_weights(width, 10 + static_cast<std::uint32_t>(index)), options);
}

/// One step's inputs on the host: requests that fill all kTokens.
struct StepInputs {
  explicit StepInputs(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::int64_t left = kTokens;
    while (query_start.size() < 4) {
      const bool is_last = query_start.size() == 3;
      const std::int64_t length =
          is_last ? left : static_cast<std::int64_t>(random() % static_cast<unsigned>(left + 1));
      for (std::int64_t i = 0; i < length; ++i) {
        token_ids.push_back(static_cast<std::int32_t>(random() % 50));
        positions.push_back(i);
      }
      left -= length;
      query_start.push_back(static_cast<std::int32_t>(token_ids.size()));
    }
    hidden = random_values(kHiddenSize, 1, seed + 1);
  }

  std::vector<std::int32_t> token_ids;
  std::vector<std::int32_t> query_start{0};
  std::vector<std::int64_t> positions;
  Values hidden;
};

RowIds ids_of(const std::int32_t* ids, const HashLayout& layout, int layer) {
  const int columns = layout.num_columns();
  return {.data = ids + std::int64_t{layer} * columns,
          .tokens = kTokens,
          .columns = columns,
          .token_stride = std::int64_t{layout.num_layers()} * columns};
}

Values on_cpu(const NgramHasher& hasher, std::vector<EngramLayer>& layers,
              const StepInputs& inputs) {
  const int depth = hasher.layout().config.lookback_depth();
  const std::vector<std::int32_t> nothing_known(static_cast<std::size_t>(3 * depth), -1);
  const auto ids = hasher({inputs.token_ids, inputs.query_start, inputs.positions, nothing_known});
  Values hidden = inputs.hidden;
  for (int layer = 0; layer < 2; ++layer) {
    EngramLayer& engram = layers[static_cast<std::size_t>(layer)];
    Ticket ticket = engram.prefetch(ids_of(ids.data(), hasher.layout(), layer));
    engram.forward(hidden, ticket, {}, hidden);
  }
  return hidden;
}

TEST(SanitizerStep, OneGraphHashesReadsAheadAndInjectsTwoLayers) {
  const HashLayout layout(config_of_step());
  const NgramHasher hasher(layout, TokenMap::identity(50));
  const NgramHasherCuda device_hasher(hasher, kGpu);
  std::vector<EngramLayer> cpu_layers;
  std::vector<EngramLayer> layers;
  for (std::size_t i = 0; i < 2; ++i) {
    cpu_layers.push_back(open_layer(layout, i, Device::cpu()));
    layers.push_back(open_layer(layout, i, kGpu));
  }
  const StepInputs first(1);
  Array<std::int32_t> token_ids(first.token_ids);
  Array<std::int32_t> query_start(first.query_start);
  Array<std::int64_t> positions(first.positions);
  Array<BF16> hidden(first.hidden);
  const Array<std::int32_t> ids(kTokens * 2 * static_cast<std::size_t>(layout.num_columns()));
  const Stream stream;
  const auto step = [&] {
    device_hasher.hash({.token_ids = token_ids.data(),
                        .query_start = query_start.data(),
                        .positions = positions.data(),
                        .tokens = kTokens,
                        .requests = 3},
                       ids.span(), stream.ref());
    std::vector<Ticket> tickets;
    for (int layer = 0; layer < 2; ++layer) {
      tickets.push_back(layers[static_cast<std::size_t>(layer)].prefetch(
          ids_of(ids.data(), layout, layer), stream.ref()));
    }
    for (std::size_t layer = 0; layer < 2; ++layer) {
      layers[layer].forward(hidden.span(), tickets[layer], {}, hidden.span(), stream.ref());
    }
  };
  step();  // loads what it needs
  stream.synchronize();
  const Graph graph(stream, step);
  for (std::uint32_t replay = 0; replay < 20; ++replay) {
    const StepInputs inputs(100 + replay);
    token_ids.write(inputs.token_ids);
    query_start.write(inputs.query_start);
    positions.write(inputs.positions);
    hidden.write(inputs.hidden);
    graph.launch(stream);
    const Values found = hidden.read(stream.ref());
    const Values expected = on_cpu(hasher, cpu_layers, inputs);
    for (std::size_t i = 0; i < kHiddenSize; ++i) {
      const float want = to_float(expected[i]);
      ASSERT_NEAR(to_float(found[i]), want, 1e-2F + 1e-2F * std::abs(want))
          << "replay " << replay << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace penstock::gpu
