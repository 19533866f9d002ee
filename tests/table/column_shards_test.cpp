#include "penstock/table/column_shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using testing::HasSubstr;

std::string message_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(ColumnShards, AgreesWithGoldenCases) {
  std::ifstream file(PENSTOCK_TEST_DATA "/golden/shards.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_GT(cases.size(), 10U);
  for (const auto& item : cases) {
    const auto head_sizes = item["head_sizes"].get<std::vector<std::int64_t>>();
    const int shards = item["shards"];
    const bool is_legal = !item.contains("error");
    EXPECT_EQ(has_column_shards(static_cast<int>(head_sizes.size()), shards), is_legal) << shards;
    if (!is_legal) {
      EXPECT_THROW(column_shards(head_sizes, shards), Error) << shards;
      continue;
    }
    std::vector<std::vector<std::int64_t>> found;
    for (const auto& s : column_shards(head_sizes, shards)) {
      found.push_back({s.column_start, s.column_end, s.row_start, s.row_end, s.local_columns});
    }
    EXPECT_EQ(nlohmann::json(found), item["bounds"]) << shards;
  }
}

TEST(ColumnShards, TwentyFourColumnsAllowExactlyTheseShardCounts) {
  std::vector<int> legal;
  for (int shards = -1; shards <= 64; ++shards) {
    if (has_column_shards(24, shards)) legal.push_back(shards);
  }
  EXPECT_THAT(legal, testing::ElementsAre(1, 2, 3, 4, 5, 6, 8, 12, 24));
}

TEST(ColumnShards, ErrorNamesWhatWouldBeLegal) {
  const std::vector<std::int64_t> head_sizes(24, 10);
  const auto message =
      message_of([&] { column_shards(head_sizes, 16); }, ErrorCode::InvalidArgument);
  EXPECT_THAT(message, HasSubstr("16 shards of 24 columns"));
  EXPECT_THAT(message, HasSubstr("1, 2, 3, 4, 5, 6, 8, 12, 24"));
}

TEST(ColumnShards, RefusesAbsurdArguments) {
  const std::vector<std::int64_t> sizes{5, 7};
  const std::vector<std::int64_t> negative{5, -1};
  const std::vector<std::int64_t> overflowing{std::numeric_limits<std::int64_t>::max(), 1};
  EXPECT_THROW(column_shards({}, 1), Error);
  EXPECT_THROW(column_shards(sizes, 0), Error);
  EXPECT_THROW(column_shards(sizes, -3), Error);
  EXPECT_THROW(column_shards(sizes, std::numeric_limits<int>::max()), Error);
  EXPECT_THROW(column_shards(negative, 1), Error);
  EXPECT_THROW(column_shards(overflowing, 1), Error);
}

TEST(RowShard, CoversEveryRowOnceWithTheFloorRule) {
  for (const std::int64_t rows : {0, 1, 2, 31, 32, 33, 384006}) {
    for (int shards = 1; shards <= 40; ++shards) {
      std::int64_t next = 0;
      for (int shard = 0; shard < shards; ++shard) {
        const RowRange range = row_shard(rows, shard, shards);
        EXPECT_EQ(range.begin, next);
        EXPECT_EQ(range.begin, shard * rows / shards);
        next = range.end;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(RowShard, DoesNotOverflow) {
  constexpr std::int64_t kRows = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(row_shard(kRows, 1023, 1024).end, kRows);
  EXPECT_EQ(row_shard(kRows, 512, 1024).begin, kRows / 2);
}

TEST(RowShard, RefusesShardsOutsideTheirCount) {
  EXPECT_THROW(row_shard(10, 2, 2), Error);
  EXPECT_THROW(row_shard(10, -1, 2), Error);
  EXPECT_THROW(row_shard(10, 0, 0), Error);
  EXPECT_THROW(row_shard(-1, 0, 1), Error);
}

}  // namespace
}  // namespace penstock
