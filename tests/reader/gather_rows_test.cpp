#include "penstock/reader/gather_rows.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "support/table_oracle.hpp"
#include "support/test_table.hpp"

namespace penstock {
namespace {

using oracle::ShardBounds;
using oracle::WholeTable;

/// A shard of a WholeTable in memory, as records or as split arrays, and the view of it.
class ShardMemory {
 public:
  ShardMemory(const WholeTable& table, const ShardBounds& bounds, bool is_packed, int parts = 1) {
    const auto dim = static_cast<std::size_t>(table.head_dim);
    const auto record = static_cast<std::size_t>(row_record_bytes(table.head_dim));
    const std::int64_t rows = bounds.row_end - bounds.row_begin;
    view.num_parts = parts;
    view.rows_per_part = (rows + parts - 1) / parts;
    view.value_stride = static_cast<std::int64_t>(is_packed ? record : dim);
    view.scale_stride = static_cast<std::int64_t>(is_packed ? record : dim / 32);
    view.row_begin = bounds.row_begin;
    view.row_end = bounds.row_end;
    view.num_rows = test::num_rows(table);
    view.head_dim = table.head_dim;
    view.column_begin = bounds.column_begin;
    view.column_end = bounds.column_end;
    view.local_columns = bounds.local_columns;
    view.rejected = &rejected;
    memory_.resize(static_cast<std::size_t>(2 * parts));
    for (int p = 0; p < parts; ++p) {
      const std::int64_t first = bounds.row_begin + p * view.rows_per_part;
      const std::int64_t last = std::min(bounds.row_end, first + view.rows_per_part);
      // Exactly sized, so that the address sanitizer sees a read past the shard.
      const auto n = static_cast<std::size_t>(std::max<std::int64_t>(0, last - first));
      auto& values = memory_[static_cast<std::size_t>(2 * p)];
      auto& scales = memory_[static_cast<std::size_t>(2 * p + 1)];
      values.resize(n * static_cast<std::size_t>(view.value_stride));
      if (!is_packed) scales.resize(n * (dim / 32));
      if (n == 0) continue;  // a part without rows has no memory
      view.values[p] = values.data();
      view.scales[p] = is_packed ? values.data() + dim : scales.data();
      for (std::size_t i = 0; i < n; ++i) {
        const auto row = static_cast<std::size_t>(first) + i;
        std::byte* to =
            is_packed ? values.data() + i * record + dim : scales.data() + i * (dim / 32);
        std::memcpy(values.data() + i * static_cast<std::size_t>(view.value_stride),
                    table.values.data() + row * dim, dim);
        std::memcpy(to, table.scales.data() + row * (dim / 32), dim / 32);
      }
    }
  }

  TableView view;
  std::uint64_t rejected = 0;

 private:
  std::vector<std::vector<std::byte>> memory_;
};

std::vector<std::byte> gather(const TableView& view, const RowIds& ids, RowFormat format) {
  const auto bytes = ids.tokens * view.local_columns * staging_row_bytes(view, format);
  std::vector<std::byte> out(static_cast<std::size_t>(bytes), std::byte{0xA5});
  gather_rows(view, ids, format, out, Device::cpu());
  return out;
}

RowIds ids_of(const std::vector<std::int32_t>& ids, int columns) {
  return {.data = ids.data(),
          .tokens = static_cast<std::int64_t>(ids.size()) / columns,
          .columns = columns,
          .token_stride = columns};
}

void expect_oracle_rows(const WholeTable& table, const ShardBounds& bounds, const TableView& view,
                        const RowIds& ids, RowFormat format) {
  const auto out = gather(view, ids, format);
  const auto row_bytes = static_cast<std::size_t>(staging_row_bytes(view, format));
  std::size_t at = 0;
  for (std::int64_t token = 0; token < ids.tokens; ++token) {
    for (int column = 0; column < bounds.local_columns; ++column, at += row_bytes) {
      const auto expected = oracle::staging_row(table, bounds, ids.data + token * ids.token_stride,
                                                column, format == RowFormat::Packed);
      ASSERT_EQ(expected.size(), row_bytes);
      ASSERT_EQ(std::memcmp(out.data() + at, expected.data(), row_bytes), 0)
          << "token " << token << ", local column " << column;
    }
  }
}

ShardBounds whole_bounds(const WholeTable& table) {
  const int columns = static_cast<int>(table.head_sizes.size());
  return {0, columns, columns, 0, test::num_rows(table)};
}

struct GatherCase {
  int head_dim = 32;
  bool is_packed_table = true;
  RowFormat format = RowFormat::Bf16;
};

void PrintTo(const GatherCase& c, std::ostream* out) {
  *out << "D" << c.head_dim << (c.is_packed_table ? "_records_" : "_split_")
       << (c.format == RowFormat::Bf16 ? "bf16" : "packed");
}

class GatherRows : public testing::TestWithParam<GatherCase> {};

TEST_P(GatherRows, GivesTheDefinitionsRowsForEveryTokenCount) {
  const auto table = test::make_whole_table(GetParam().head_dim, {7, 11, 5});
  const auto bounds = whole_bounds(table);
  const ShardMemory shard(table, bounds, GetParam().is_packed_table);
  for (const int tokens : {0, 1, 2, 31, 32, 33, 64, 65, 257}) {
    const auto ids = test::random_ids(table, tokens, 1);
    expect_oracle_rows(table, bounds, shard.view, ids_of(ids, 3), GetParam().format);
  }
  EXPECT_EQ(shard.rejected, 0U);
}

TEST_P(GatherRows, GivesZerosForRowsColumnsAndIdsThatTheShardDoesNotHold) {
  const auto table = test::make_whole_table(GetParam().head_dim, {7, 11, 5, 9, 3});
  const std::vector<ShardBounds> shards{{0, 2, 2, 0, 18}, {2, 4, 2, 18, 32}, {4, 5, 2, 32, 35},
                                        {0, 5, 5, 0, 17}, {0, 5, 5, 17, 35}, {0, 5, 5, 35, 35}};
  auto ids = test::random_ids(table, 40, 2);
  for (std::size_t i = 0; i < ids.size(); i += 3) ids[i] = static_cast<std::int32_t>(i % 36) - 1;
  for (const auto& bounds : shards) {
    const ShardMemory shard(table, bounds, GetParam().is_packed_table);
    expect_oracle_rows(table, bounds, shard.view, ids_of(ids, 5), GetParam().format);
  }
}

TEST_P(GatherRows, CountsHostileIdsAndAnswersWithZeros) {
  const auto table = test::make_whole_table(GetParam().head_dim, {7, 11});
  const auto bounds = whole_bounds(table);
  ShardMemory shard(table, bounds, GetParam().is_packed_table);
  constexpr auto kMin = std::numeric_limits<std::int32_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::int32_t> ids{-1, -2, kMin, kMax, 18, 17, 0, 1 << 30, -1, -(1 << 30)};
  expect_oracle_rows(table, bounds, shard.view, ids_of(ids, 2), GetParam().format);
  EXPECT_EQ(shard.rejected, 6U);
  shard.view.rejected = nullptr;
  expect_oracle_rows(table, bounds, shard.view, ids_of(ids, 2), GetParam().format);
}

TEST_P(GatherRows, FindsRowsThatAreSpreadOverParts) {
  const auto table = test::make_whole_table(GetParam().head_dim, {7, 11, 5});
  const auto bounds = whole_bounds(table);
  for (const int parts : {2, 3, 8, 16}) {
    const ShardMemory shard(table, bounds, GetParam().is_packed_table, parts);
    const auto ids = test::random_ids(table, 100, 3);
    expect_oracle_rows(table, bounds, shard.view, ids_of(ids, 3), GetParam().format);
  }
}

TEST_P(GatherRows, ReadsIdsOfOneLayerOutOfMany) {
  const auto table = test::make_whole_table(GetParam().head_dim, {7, 11, 5});
  const auto bounds = whole_bounds(table);
  const ShardMemory shard(table, bounds, GetParam().is_packed_table);
  const auto ids = test::random_ids(table, 3 * 20, 4);  // [20 tokens, 3 layers, 3 columns]
  const RowIds layer{.data = ids.data() + 6, .tokens = 20, .columns = 3, .token_stride = 9};
  expect_oracle_rows(table, bounds, shard.view, layer, GetParam().format);
}

INSTANTIATE_TEST_SUITE_P(Formats, GatherRows,
                         testing::Values(GatherCase{32, true, RowFormat::Bf16},
                                         GatherCase{32, true, RowFormat::Packed},
                                         GatherCase{32, false, RowFormat::Packed},
                                         GatherCase{96, false, RowFormat::Bf16},
                                         GatherCase{256, true, RowFormat::Bf16},
                                         GatherCase{256, true, RowFormat::Packed},
                                         GatherCase{256, false, RowFormat::Bf16}),
                         [](const auto& param) { return testing::PrintToString(param.param); });

// 384 million rows of 264 bytes: offsets need 37 bits. The memory is address space only.
TEST(GatherRowsOffsets, ReachTheLastRowOfATableOfFullSize) {
  constexpr std::int64_t kRows = 384016682;
  constexpr std::int64_t kRecordBytes = row_record_bytes(256);
  constexpr std::size_t kBytes = static_cast<std::size_t>(kRows * kRecordBytes);
  void* base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) GTEST_SKIP() << "needs 101 GB of address space";
  auto* records = static_cast<std::byte*>(base);
  std::memset(records + (kRows - 1) * kRecordBytes, 0x38, 264);
  TableView view;
  view.values[0] = records;
  view.scales[0] = records + 256;
  view.value_stride = view.scale_stride = kRecordBytes;
  view.rows_per_part = view.row_end = view.num_rows = kRows;
  view.head_dim = 256;
  view.column_end = view.local_columns = 2;
  const std::vector<std::int32_t> ids{kRows - 1, kRows - 2};
  const auto out = gather(view, ids_of(ids, 2), RowFormat::Packed);
  EXPECT_TRUE(std::ranges::all_of(std::span(out).first(264),
                                  [](std::byte byte) { return byte == std::byte{0x38}; }));
  EXPECT_TRUE(std::ranges::all_of(std::span(out).subspan(264),
                                  [](std::byte byte) { return byte == std::byte{0}; }));
  ::munmap(base, kBytes);
}

TEST(GatherRowsArguments, RefusesSizesThatDoNotFit) {
  const auto table = test::make_whole_table(32, {7, 11});
  const ShardMemory shard(table, whole_bounds(table), true);
  const std::vector<std::int32_t> ids(8, 0);
  std::vector<std::byte> out(8 * 64, std::byte{0xA5});
  const auto untouched = out;
  const auto refuses = [&](const RowIds& bad, std::size_t bytes) {
    EXPECT_THROW(
        gather_rows(shard.view, bad, RowFormat::Bf16, std::span(out).first(bytes), Device::cpu()),
        Error);
  };
  refuses({ids.data(), 4, 2, 2}, 8 * 64 - 1);
  refuses({ids.data(), 3, 2, 2}, 8 * 64);
  refuses({ids.data(), 4, 1, 2}, 8 * 64);
  refuses({ids.data(), 4, 2, 1}, 8 * 64);
  refuses({ids.data(), -1, 2, 2}, 8 * 64);
  refuses({nullptr, 4, 2, 2}, 8 * 64);
  EXPECT_EQ(out, untouched);
}

TEST(GatherRowsArguments, RefusesCudaInABuildWithoutIt) {
  if (build::has_cuda) GTEST_SKIP() << "this build has CUDA";
  const auto table = test::make_whole_table(32, {7, 11});
  const ShardMemory shard(table, whole_bounds(table), true);
  const std::vector<std::int32_t> ids(2, 0);
  std::vector<std::byte> out(2 * 64);
  EXPECT_THROW(gather_rows(shard.view, ids_of(ids, 2), RowFormat::Bf16, out, Device::cuda(0)),
               Error);
}

TEST(GatherWorkspace, IsNothingOnTheCpu) {
  const auto table = test::make_whole_table(256, {101, 103, 107});
  const ShardMemory shard(table, whole_bounds(table), true);
  for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{1} << 40}) {
    EXPECT_EQ(gather_workspace_bytes(shard.view, tokens, Device::cpu()), 0U);
  }
  EXPECT_THROW(gather_workspace_bytes(shard.view, -1, Device::cpu()), Error);
  if (build::has_cuda) GTEST_SKIP() << "this build has CUDA";
  EXPECT_THROW(gather_workspace_bytes(shard.view, 1, Device::cuda(0)), Error);
}

TEST(GatherRowsThreads, GivesTheSameRowsOnAnyNumberOfThreads) {
  const auto table = test::make_whole_table(64, {101, 103, 107});
  const auto bounds = whole_bounds(table);
  ShardMemory shard(table, bounds, true);
  auto ids = test::random_ids(table, 1000, 5);
  for (std::size_t i = 0; i < ids.size(); i += 10) ids[i] = 5000;
  const int before = parallel_threads();
  for (const int threads : {1, 2, 7}) {
    set_parallel_threads(threads);
    shard.rejected = 0;
    expect_oracle_rows(table, bounds, shard.view, ids_of(ids, 3), RowFormat::Bf16);
    EXPECT_EQ(shard.rejected, 300U);
  }
  set_parallel_threads(before);
}

}  // namespace
}  // namespace penstock
