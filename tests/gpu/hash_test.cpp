#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "gpu/gpu_support.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/ngram_hasher.hpp"
#include "penstock/engram/ngram_hasher_cuda.hpp"
#include "support/engram_cases.hpp"
#include "support/hash_oracle.hpp"

namespace penstock::gpu {
namespace {

using testing_support::released_config;
using testing_support::small_config;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kDead = 40;

/// A step of several requests with random tokens and windows.
struct Step {
  Ids token_ids;
  Ids query_start{0};
  std::vector<std::int64_t> positions;
  Ids lookback;

  TokenBatch view() const { return {token_ids, query_start, positions, lookback}; }
};

Step random_step(const std::vector<int>& lengths, int depth, std::int32_t below,
                 std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto token = [&] {
    return static_cast<std::int32_t>(random() % static_cast<unsigned>(below));
  };
  Step step;
  for (const int length : lengths) {
    const auto first = static_cast<std::int64_t>(random() % 3);  // often inside the window
    for (int i = 0; i < length; ++i) {
      step.token_ids.push_back(i % 5 == 4 ? kDead : token());
      step.positions.push_back(first + i);
    }
    step.query_start.push_back(static_cast<std::int32_t>(step.token_ids.size()));
    for (int j = 0; j < depth; ++j) step.lookback.push_back(j < first ? token() : -1);
  }
  return step;
}

/// The arrays of a step on the GPU.
struct DeviceStep {
  explicit DeviceStep(const Step& step)
      : token_ids(step.token_ids),
        query_start(step.query_start),
        positions(step.positions),
        lookback(step.lookback) {}

  DeviceTokenBatch view(const std::int32_t* num_tokens = nullptr) const {
    return {.token_ids = token_ids.data(),
            .query_start = query_start.data(),
            .positions = positions.data(),
            .lookback = lookback.data(),
            .tokens = static_cast<std::int64_t>(token_ids.count()),
            .requests = static_cast<std::int64_t>(query_start.count()) - 1,
            .num_tokens = num_tokens};
  }

  Array<std::int32_t> token_ids;
  Array<std::int32_t> query_start;
  Array<std::int64_t> positions;
  Array<std::int32_t> lookback;
};

Ids hash_on_gpu(const NgramHasherCuda& hasher, const DeviceTokenBatch& batch, std::size_t row) {
  const Array<std::int32_t> out(static_cast<std::size_t>(batch.tokens) * row);
  const Stream stream;
  hasher.hash(batch, out.span(), stream.ref());
  return out.read(stream.ref());
}

std::size_t row_of(const NgramHasher& hasher) {
  return static_cast<std::size_t>(hasher.layout().num_layers()) *
         static_cast<std::size_t>(hasher.layout().num_columns());
}

void expect_same_hashes(const NgramHasher& cpu, std::int32_t below) {
  const NgramHasherCuda gpu(cpu, kGpu);
  const int depth = cpu.layout().config.lookback_depth();
  std::uint32_t seed = 1;
  for (const std::vector<int>& lengths : std::vector<std::vector<int>>{
           {1}, {1, 1, 1}, {17}, {257}, {1, 0, 17, 0, 33, 2}, {0, 5}, {1000, 1, 31}}) {
    const Step step = random_step(lengths, depth, below, seed++);
    EXPECT_EQ(hash_on_gpu(gpu, DeviceStep(step).view(), row_of(cpu)), cpu(step.view()));
  }
  EXPECT_EQ(gpu.rejected_tokens(), 0U);
}

TEST(SanitizerHash, IsThatOfTheCpu) {
  expect_same_hashes({HashLayout(small_config()), TokenMap::identity(50), kDead}, 50);
  expect_same_hashes({HashLayout(small_config()), TokenMap::identity(50)}, 50);
}

TEST(Hash, IsThatOfTheCpuForTheReleasedLayout) {
  expect_same_hashes({HashLayout(released_config()), TokenMap::identity(99092), kDead}, 99092);
}

TEST(SanitizerHash, LeavesRowsPastTheCountOnTheDeviceEmpty) {
  const NgramHasher cpu(HashLayout(small_config()), TokenMap::identity(50), kDead);
  const NgramHasherCuda gpu(cpu, kGpu);
  const Step step = random_step({40}, cpu.layout().config.lookback_depth(), 50, 3);
  const DeviceStep device_step(step);
  for (const int count : {0, 1, 31, 32, 33, 40, 99}) {
    const Array<std::int32_t> num_tokens(Ids{count});
    Ids expected = cpu(step.view());
    const auto used = static_cast<std::size_t>(std::min(count, 40)) * row_of(cpu);
    std::fill(expected.begin() + static_cast<std::ptrdiff_t>(used), expected.end(), -1);
    EXPECT_EQ(hash_on_gpu(gpu, device_step.view(num_tokens.data()), row_of(cpu)), expected);
  }
}

TEST(SanitizerHash, TakesTokensOutsideTheMapForDeadAndCountsThem) {
  const NgramHasher cpu(HashLayout(small_config()), TokenMap::identity(50), kDead);
  const NgramHasherCuda gpu(cpu, kGpu);
  Step step = random_step({40}, cpu.layout().config.lookback_depth(), 40, 3);
  Step dead = step;
  for (const auto& [at, id] : {std::pair{3, 50}, std::pair{20, -2}, std::pair{39, 1 << 30}}) {
    step.token_ids[static_cast<std::size_t>(at)] = id;
    dead.token_ids[static_cast<std::size_t>(at)] = kDead;
  }
  EXPECT_EQ(hash_on_gpu(gpu, DeviceStep(step).view(), row_of(cpu)), cpu(dead.view()));
  EXPECT_EQ(gpu.rejected_tokens(), 3U);
}

TEST(SanitizerHash, FindsEarlierTokensInTheSlotCache) {
  const NgramHasher cpu(HashLayout(small_config()), TokenMap::identity(50), kDead);
  const NgramHasherCuda gpu(cpu, kGpu);
  const int depth = cpu.layout().config.lookback_depth();
  std::mt19937 random(9);
  Ids tokens(23);
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 50);
  Ids map_ids(50);
  std::iota(map_ids.begin(), map_ids.end(), 0);
  const Ids expected = testing_support::sequence_rows(cpu.layout(), map_ids, kDead, tokens);
  // Blocks of 4 slots in an order of their own.
  const Array<std::int32_t> block_table(Ids{5, 2, 0, 4, 1, 3});
  const Ids blocks{5, 2, 0, 4, 1, 3};
  const Array<std::int32_t> values(24);
  const Stream stream;
  Ids found;
  for (std::size_t begin = 0; begin < tokens.size();) {
    const std::size_t end = std::min(tokens.size(), begin + 1 + begin % 3);
    Step step;
    std::vector<std::int64_t> slots;
    for (std::size_t p = begin; p < end; ++p) {
      step.token_ids.push_back(tokens[p]);
      step.positions.push_back(static_cast<std::int64_t>(p));
      slots.push_back(blocks[p / 4] * 4 + static_cast<std::int64_t>(p % 4));
    }
    step.query_start.push_back(static_cast<std::int32_t>(end - begin));
    step.lookback.assign(static_cast<std::size_t>(depth), -1);
    const DeviceStep device_step(step);
    const Array<std::int64_t> slot_mapping(slots);
    const Array<std::int32_t> out((end - begin) * row_of(cpu));
    gpu.hash(device_step.view(),
             {.values = values.data(),
              .slot_mapping = slot_mapping.data(),
              .block_table = block_table.data(),
              .num_slots = 24,
              .rows = 1,
              .max_blocks = 6,
              .block_size = 4},
             out.span(), stream.ref());
    const Ids rows = out.read(stream.ref());
    found.insert(found.end(), rows.begin(), rows.end());
    begin = end;
  }
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace penstock::gpu
