#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "penstock/core/error.hpp"
#include "penstock/table/row_source.hpp"
#include "penstock/table/table_view.hpp"

namespace penstock {
namespace {

std::vector<std::byte> read(const RowSource& rows, std::int64_t first, std::int64_t count) {
  std::vector<std::byte> records(
      static_cast<std::size_t>(count * row_record_bytes(rows.head_dim())));
  rows.read(first, records);
  return records;
}

TEST(RandomRows, AreAPureFunctionOfSeedLayerAndRow) {
  const auto rows = make_random_rows(3, 1, 1000, 256);
  const auto together = read(*rows, 400, 20);
  for (std::int64_t i = 0; i < 20; ++i) {
    const auto one = read(*make_random_rows(3, 1, 500, 256), 400 + i, 1);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), together.begin() + i * 264)) << i;
  }
  EXPECT_NE(read(*make_random_rows(4, 1, 1000, 256), 400, 1), read(*rows, 400, 1));
  EXPECT_NE(read(*make_random_rows(3, 14, 1000, 256), 400, 1), read(*rows, 400, 1));
  EXPECT_NE(read(*rows, 401, 1), read(*rows, 400, 1));
}

// A change of the function would silently invalidate stored checksums of runs with random rows.
TEST(RandomRows, KeepTheirValuesOverVersions) {
  const auto record = read(*make_random_rows(1, 14, 384016682, 256), 384016681, 1);
  std::uint64_t hash = 14695981039346656037ULL;
  for (const auto byte : record)
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 1099511628211ULL;
  EXPECT_EQ(hash, 1533584131211387843U);
}

TEST(RandomRows, HaveFiniteCodesModerateScalesAndZeroPadding) {
  for (const int head_dim : {32, 96, 256}) {
    const auto record_bytes = row_record_bytes(head_dim);
    const auto records = read(*make_random_rows(5, 1, 500, head_dim), 0, 500);
    std::set<int> codes, scales;
    for (std::int64_t row = 0; row < 500; ++row) {
      const auto* record =
          reinterpret_cast<const std::uint8_t*>(records.data()) + row * record_bytes;
      codes.insert(record, record + head_dim);
      scales.insert(record + head_dim, record + head_dim + head_dim / 32);
      for (auto i = std::int64_t{head_dim} + head_dim / 32; i < record_bytes; ++i) {
        EXPECT_EQ(record[i], 0);
      }
    }
    EXPECT_EQ(codes.size(), 254U);  // all but the two NaN codes
    EXPECT_FALSE(codes.contains(0x7F) || codes.contains(0xFF));
    EXPECT_EQ(*scales.begin(), 109);
    EXPECT_EQ(*scales.rbegin(), 121);
    EXPECT_EQ(scales.size(), 13U);
  }
}

TEST(RandomRows, MayBeReadOnSeveralThreads) {
  const auto rows = make_random_rows(3, 1, 100000, 256);
  const auto expected = read(*rows, 0, 2000);
  std::vector<std::byte> found(expected.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      rows->read(static_cast<std::int64_t>(i) * 500,
                 std::span(found).subspan(i * 500 * 264, std::size_t{500} * 264));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(found, expected);
}

TEST(RandomRows, RefusesReadsOutsideTheTableAndPartialRecords) {
  const auto rows = make_random_rows(3, 1, 10, 32);  // records of 40 bytes
  std::vector<std::byte> records(80);
  EXPECT_NO_THROW(rows->read(8, records));
  EXPECT_NO_THROW(rows->read(10, std::span(records).first(0)));
  EXPECT_THROW(rows->read(9, records), Error);
  EXPECT_THROW(rows->read(-1, records), Error);
  EXPECT_THROW(rows->read(11, std::span(records).first(0)), Error);
  EXPECT_THROW(rows->read(0, std::span(records).first(41)), Error);
  EXPECT_THROW(make_random_rows(1, 1, -1, 32), Error);
  EXPECT_THROW(make_random_rows(1, 1, 1, 0), Error);
  EXPECT_THROW(make_random_rows(1, 1, 1, 33), Error);
}

}  // namespace
}  // namespace penstock
