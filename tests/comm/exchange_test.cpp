#include "penstock/comm/exchange.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

/// What a shard stages for a token: `token_bytes` bytes that only (shard, owner, token) give.
std::byte staged_byte(int shard, int owner, std::int64_t token, std::int64_t i) {
  return static_cast<std::byte>(shard * 97 + owner * 31 + static_cast<int>(token) * 7 +
                                static_cast<int>(i));
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

TEST(ExchangeRows, BringsEveryShardsColumnsToTheTokensOwner) {
  for (const std::vector<std::int64_t>& tokens :
       {std::vector<std::int64_t>{4, 4}, {3, 0, 5}, {0, 0, 0}, {7, 1, 2, 0, 3}}) {
    const auto size = static_cast<int>(tokens.size());
    const std::int64_t token_bytes = 24;
    run_thread_group(size, [&](Communicator& comm) {
      const auto mine = tokens[static_cast<std::size_t>(comm.rank())];
      const TokenSlots slots = agree_slots(comm, mine, 8);
      std::vector<std::byte> staged;
      for (int owner = 0; owner < size; ++owner) {
        for (std::int64_t token = 0; token < slots.slot; ++token) {
          for (std::int64_t i = 0; i < token_bytes; ++i) {
            staged.push_back(staged_byte(comm.rank(), owner, token, i));
          }
        }
      }
      std::vector<std::byte> out(static_cast<std::size_t>(mine * size * token_bytes));
      exchange_rows(comm, slots, staged, token_bytes, out);
      std::size_t at = 0;
      for (std::int64_t token = 0; token < mine; ++token) {
        for (int shard = 0; shard < size; ++shard) {
          for (std::int64_t i = 0; i < token_bytes; ++i, ++at) {
            ASSERT_EQ(out[at], staged_byte(shard, comm.rank(), token, i));
          }
        }
      }
    });
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
