#include "penstock/engram/slot_cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "penstock/core/error.hpp"
#include "support/engram_cases.hpp"
#include "support/hash_oracle.hpp"

namespace penstock {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::identity_ids;
using testing_support::sequence_rows;
using testing_support::small_config;

using Tokens = std::vector<std::int32_t>;

constexpr int kBlockSize = 4;
constexpr std::int64_t kMaxBlocks = 8;
constexpr std::int32_t kDead = 77;
constexpr std::size_t kRow = 12;  // layers times columns of small_config

/// A sequence whose blocks lie anywhere in the cache.
struct BlockSequence {
  Tokens tokens = {};
  std::vector<std::int32_t> blocks = {};  ///< [kMaxBlocks]
  std::size_t done = 0;
  Tokens rows = {};

  std::int64_t slot(std::size_t position) const {
    return std::int64_t{blocks[position / kBlockSize]} * kBlockSize +
           static_cast<std::int64_t>(position % kBlockSize);
  }
};

std::vector<BlockSequence> random_sequences(std::mt19937& random, std::size_t count) {
  Tokens blocks = identity_ids(static_cast<std::int32_t>(count * kMaxBlocks));
  std::ranges::shuffle(blocks, random);
  std::vector<BlockSequence> sequences(count);
  for (std::size_t i = 0; i < count; ++i) {
    sequences[i].tokens.resize(random() % (kBlockSize * kMaxBlocks + 1));
    for (auto& token : sequences[i].tokens) {
      token = random() % 6 == 0 ? kDead : static_cast<std::int32_t>(random() % 50);
    }
    const auto first = blocks.begin() + static_cast<std::ptrdiff_t>(i) * kMaxBlocks;
    sequences[i].blocks.assign(first, first + kMaxBlocks);
  }
  return sequences;
}

/// One step's arrays.
struct Step {
  Tokens token_ids;
  std::vector<std::int32_t> query_start{0};
  std::vector<std::int64_t> positions;
  std::vector<std::int64_t> slots;
  std::vector<std::int32_t> blocks;

  void add(const BlockSequence& sequence, std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; ++at) {
      token_ids.push_back(sequence.tokens[at]);
      positions.push_back(static_cast<std::int64_t>(at));
      slots.push_back(sequence.slot(at));
    }
    query_start.push_back(static_cast<std::int32_t>(token_ids.size()));
    blocks.insert(blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
  }

  Tokens hash(SlotCache& cache, const NgramHasher& hasher) const {
    cache.write(hasher, token_ids, slots);
    Tokens out(token_ids.size() * kRow);
    cache.hash(hasher, {token_ids, query_start, positions, {}}, {blocks, kMaxBlocks}, out);
    return out;
  }
};

TEST(SlotCache, GivesTheRowsOfTheWholeSequenceForAnyChunking) {
  std::mt19937 random(11);
  const HashLayout layout(small_config());
  const NgramHasher hasher(layout, TokenMap::identity(50), kDead);
  for (int round = 0; round < 40; ++round) {
    auto sequences = random_sequences(random, 1 + random() % 3);
    SlotCache cache(std::ssize(sequences) * kMaxBlocks, kBlockSize);
    const auto is_done = [](const BlockSequence& s) { return s.done == s.tokens.size(); };
    while (!std::ranges::all_of(sequences, is_done)) {
      Step step;
      std::vector<std::size_t> ends;
      for (const auto& sequence : sequences) {
        ends.push_back(std::min(sequence.tokens.size(), sequence.done + random() % 6));
        step.add(sequence, sequence.done, ends.back());
      }
      const Tokens rows = step.hash(cache, hasher);
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        const auto begin = static_cast<std::size_t>(step.query_start[i]) * kRow;
        const auto end = static_cast<std::size_t>(step.query_start[i + 1]) * kRow;
        const auto part = std::span(rows).subspan(begin, end - begin);
        sequences[i].rows.insert(sequences[i].rows.end(), part.begin(), part.end());
        sequences[i].done = ends[i];
      }
    }
    for (const auto& sequence : sequences) {
      ASSERT_EQ(sequence.rows, sequence_rows(layout, identity_ids(50), kDead, sequence.tokens));
    }
  }
}

TEST(SlotCache, RejectedSpeculativeTokensAreSimplyWrittenOver) {
  const HashLayout layout(small_config());
  const NgramHasher hasher(layout, TokenMap::identity(50));
  BlockSequence sequence{.tokens = {5, 6, 7, 40, 41}, .blocks = identity_ids(kMaxBlocks)};
  SlotCache cache(kMaxBlocks, kBlockSize);
  Step guess;
  guess.add(sequence, 0, 5);
  guess.hash(cache, hasher);
  sequence.tokens = {5, 6, 7, 8, 9};
  Step truth;
  truth.add(sequence, 3, 5);
  const Tokens whole = sequence_rows(layout, identity_ids(50), std::nullopt, sequence.tokens);
  EXPECT_TRUE(std::ranges::equal(truth.hash(cache, hasher), std::span(whole).subspan(3 * kRow)));
}

TEST(SlotCache, AsksTheWindowFirst) {
  // The prompt was hashed elsewhere: its slots are unwritten here, and the window covers them.
  const HashLayout layout(small_config());
  const NgramHasher hasher(layout, TokenMap::identity(50), kDead);
  const BlockSequence sequence{.tokens = {5, 6, kDead, 7, 8, 9},
                               .blocks = identity_ids(kMaxBlocks)};
  SlotCache cache(kMaxBlocks, kBlockSize);
  const Tokens whole = sequence_rows(layout, identity_ids(50), kDead, sequence.tokens);
  Step step;
  step.add(sequence, 4, 6);
  cache.write(hasher, step.token_ids, step.slots);
  const auto hash = [&](const Tokens& window) {
    Tokens out(step.token_ids.size() * kRow);
    cache.hash(hasher, {step.token_ids, step.query_start, step.positions, window},
               {step.blocks, kMaxBlocks}, out);
    return out;
  };
  const auto expected = std::span(whole).subspan(4 * kRow);
  EXPECT_TRUE(std::ranges::equal(hash({7, kDead}), expected));
  EXPECT_FALSE(std::ranges::equal(hash({-1, -1}), expected));
  EXPECT_FALSE(std::ranges::equal(hash({}), expected));
}

TEST(SlotCache, PaddingChangesNothing) {
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  const BlockSequence sequence{.tokens = {5, 6, 7, 8}, .blocks = identity_ids(kMaxBlocks)};
  SlotCache cache(kMaxBlocks, kBlockSize);
  Step first;
  first.add(sequence, 0, 3);
  first.hash(cache, hasher);
  // A step of padding alone: its ids may be any.
  cache.write(hasher, Tokens{9, 9999, -3}, std::vector<std::int64_t>{-1, -1, -1});
  Step next;
  next.add(sequence, 3, 4);
  const Tokens whole =
      sequence_rows(hasher.layout(), identity_ids(50), std::nullopt, sequence.tokens);
  EXPECT_TRUE(std::ranges::equal(next.hash(cache, hasher), std::span(whole).subspan(3 * kRow)));
}

TEST(SlotCache, ForgetsOnReset) {
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  const BlockSequence sequence{.tokens = {5, 6, 7, 8}, .blocks = identity_ids(kMaxBlocks)};
  SlotCache cache(kMaxBlocks, kBlockSize);
  Step first;
  first.add(sequence, 0, 3);
  first.hash(cache, hasher);
  Step next;
  next.add(sequence, 3, 4);
  const Tokens before = next.hash(cache, hasher);
  cache.reset();
  EXPECT_NE(next.hash(cache, hasher), before);
}

TEST(SlotCache, StaysInsideWhateverTheBlockTableHolds) {
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  const SlotCache cache(2, kBlockSize);
  const Tokens ids{5};
  const std::vector<std::int32_t> query_start{0, 1};
  for (const std::int32_t block : {-7, 1000000, 2147483647, -2147483647 - 1}) {
    for (const std::int64_t position : {std::int64_t{2}, std::int64_t{1} << 40}) {
      const std::vector<std::int64_t> positions{position};
      const std::vector<std::int32_t> blocks(3, block);
      Tokens out(kRow);
      cache.hash(hasher, {ids, query_start, positions, {}}, {blocks, 3}, out);
    }
  }
}

TEST(SlotCache, RefusesArgumentsThatDoNotFitAndStoresNothing) {
  const NgramHasher hasher(HashLayout(small_config()), TokenMap::identity(50));
  EXPECT_THROW(SlotCache(0, 4), Error);
  EXPECT_THROW(SlotCache(4, 0), Error);
  EXPECT_THROW(SlotCache(std::int64_t{1} << 62, 4), Error);
  const BlockSequence sequence{.tokens = {5, 6, 7, 8}, .blocks = identity_ids(kMaxBlocks)};
  SlotCache cache(kMaxBlocks, kBlockSize);
  Step step;
  step.add(sequence, 2, 4);
  const Tokens empty = step.hash(cache, hasher);
  cache.reset();
  const auto write = [&](const Tokens& ids, const std::vector<std::int64_t>& slots) {
    cache.write(hasher, ids, slots);
  };
  EXPECT_THAT([&] { write({5, 6}, {0}); }, ThrowsMessage<Error>(HasSubstr("found 1 slots")));
  EXPECT_THAT([&] { write({5, 6}, {0, 32}); },
              ThrowsMessage<Error>(HasSubstr("slot_mapping[1] is 32, needed: -1 to 31")));
  EXPECT_THAT([&] { write({5, 6}, {0, -2}); }, ThrowsMessage<Error>(HasSubstr("is -2")));
  EXPECT_THAT([&] { write({5, 50}, {0, 1}); },
              ThrowsMessage<Error>(HasSubstr("token_ids[1] is 50, needed: 0 <= id < 50")));
  EXPECT_EQ(step.hash(cache, hasher), empty);
  Tokens out(2 * kRow);
  const TokenBatch batch{step.token_ids, step.query_start, step.positions, {}};
  EXPECT_THROW(cache.hash(hasher, batch, {{}, kMaxBlocks}, out), Error);
  EXPECT_THROW(cache.hash(hasher, batch, {step.blocks, 0}, out), Error);
  EXPECT_THROW(cache.hash(hasher, batch, {std::span(step.blocks).first(5), kMaxBlocks}, out),
               Error);
  const Tokens window{1};
  EXPECT_THROW(cache.hash(hasher, {step.token_ids, step.query_start, step.positions, window},
                          {step.blocks, kMaxBlocks}, out),
               Error);
}

}  // namespace
}  // namespace penstock
