#include "penstock/comm/exchange.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

/// What a shard stages for a token: `token_bytes` bytes that only (shard, owner, token) give.
std::byte staged_byte(int shard, int owner, std::int64_t token, std::int64_t i, int layer = 0) {
  return static_cast<std::byte>(layer * 113 + shard * 97 + owner * 31 +
                                static_cast<int>(token) * 7 + static_cast<int>(i));
}

TEST(SequenceChunk, CoversTheTokensInOrder) {
  for (const std::int64_t tokens : {0, 1, 3, 8, 17}) {
    for (const int ranks : {1, 2, 3, 8}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const TokenRange range = sequence_chunk(tokens, rank, ranks);
        EXPECT_EQ(range.first, next);
        next += range.count;
      }
      EXPECT_EQ(next, tokens);
    }
  }
}

TEST(GatherRowIds, PadsWhatARankDoesNotHaveWithMinusOne) {
  const std::vector<std::int64_t> tokens{2, 0, 3};
  run_thread_group(3, [&](Communicator& comm) {
    const auto mine = tokens[static_cast<std::size_t>(comm.rank())];
    const TokenSlots slots = agree_slots(comm, mine, 3);
    EXPECT_EQ(slots.slot, 3);
    EXPECT_EQ(slots.counts, tokens);
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(mine) * 2, comm.rank() + 10);
    std::vector<std::int32_t> out(3 * 3 * 2);
    gather_row_ids(comm, slots, ids, out);
    const std::vector<std::int32_t> expected{10, 10, 10, 10, -1, -1, -1, -1, -1,
                                             -1, -1, -1, 12, 12, 12, 12, 12, 12};
    EXPECT_EQ(out, expected);
  });
}

TEST(AgreeSlots, RaisesOnEveryRankWhenOneHasTooManyTokens) {
  run_thread_group(3, [](Communicator& comm) {
    try {
      static_cast<void>(agree_slots(comm, comm.rank() == 1 ? 5 : 2, 4));
      FAIL() << "5 tokens were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      EXPECT_STREQ(error.what(), "agree_slots: rank 1 has 5 tokens, at most 4 fit the slot");
    }
    comm.barrier();  // the group is still usable
  });
}

/// What this rank stages in one layer for the slots of all ranks.
std::vector<std::byte> staged_rows(int shard, int layer, const TokenSlots& slots,
                                   std::int64_t token_bytes) {
  std::vector<std::byte> staged;
  for (int owner = 0; owner < static_cast<int>(slots.counts.size()); ++owner) {
    for (std::int64_t token = 0; token < slots.slot; ++token) {
      for (std::int64_t i = 0; i < token_bytes; ++i) {
        staged.push_back(staged_byte(shard, owner, token, i, layer));
      }
    }
  }
  return staged;
}

void expect_exchanged(const std::vector<std::byte>& out, int owner, int layer, int size,
                      std::int64_t token_bytes) {
  std::size_t at = 0;
  for (std::int64_t token = 0; at < out.size(); ++token) {
    for (int shard = 0; shard < size; ++shard) {
      for (std::int64_t i = 0; i < token_bytes; ++i, ++at) {
        ASSERT_EQ(out[at], staged_byte(shard, owner, token, i, layer)) << "layer " << layer;
      }
    }
  }
}

TEST(ExchangeRows, BringsEveryShardsColumnsOfAllLayersToTheTokensOwner) {
  const std::int64_t token_bytes = 24;
  for (const int layers : {1, 2, 3}) {
    for (const std::vector<std::int64_t>& tokens :
         {std::vector<std::int64_t>{4, 4}, {3, 0, 5}, {0, 0, 0}, {7, 1, 2, 0, 3}}) {
      const auto size = static_cast<int>(tokens.size());
      run_thread_group(size, [&](Communicator& comm) {
        const auto mine = tokens[static_cast<std::size_t>(comm.rank())];
        const TokenSlots slots = agree_slots(comm, mine, 8);
        std::vector<std::vector<std::byte>> staged;
        std::vector<std::vector<std::byte>> out;
        for (int layer = 0; layer < layers; ++layer) {
          staged.push_back(staged_rows(comm.rank(), layer, slots, token_bytes));
          out.emplace_back(static_cast<std::size_t>(mine * size * token_bytes));
        }
        const std::vector<std::span<const std::byte>> from(staged.begin(), staged.end());
        const std::vector<std::span<std::byte>> to(out.begin(), out.end());
        exchange_rows(comm, slots, from, token_bytes, to);
        for (int layer = 0; layer < layers; ++layer) {
          expect_exchanged(out[static_cast<std::size_t>(layer)], comm.rank(), layer, size,
                           token_bytes);
        }
      });
    }
  }
}

TEST(GatherChunkColumns, GivesEachRankItsRowsOfGatherColumns) {
  for (const int size : {1, 2, 3, 8}) {
    for (const std::int64_t tokens : {0, 1, 2, 7, 16}) {
      const std::int64_t token_bytes = 8;
      run_thread_group(size, [&](Communicator& comm) {
        std::vector<std::byte> rows;
        for (std::int64_t token = 0; token < tokens; ++token) {
          for (std::int64_t i = 0; i < token_bytes; ++i) {
            rows.push_back(staged_byte(comm.rank(), 0, token, i));
          }
        }
        const std::int64_t wide = token_bytes * size;
        std::vector<std::byte> all(static_cast<std::size_t>(tokens * wide));
        gather_columns(comm, rows, token_bytes, all);
        const TokenRange mine = sequence_chunk(tokens, comm.rank(), size);
        std::vector<std::byte> chunk(static_cast<std::size_t>(mine.count * wide));
        gather_chunk_columns(comm, rows, token_bytes, chunk);
        EXPECT_TRUE(chunk.empty() ||
                    std::memcmp(chunk.data(), all.data() + mine.first * wide, chunk.size()) == 0);
        for (std::int64_t token = 0; token < tokens; ++token) {
          for (int shard = 0; shard < size; ++shard) {
            EXPECT_EQ(all[static_cast<std::size_t>(token * wide + shard * token_bytes)],
                      staged_byte(shard, 0, token, 0));
          }
        }
      });
    }
  }
}

}  // namespace
}  // namespace penstock
