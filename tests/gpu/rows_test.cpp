#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpu/gpu_support.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table.hpp"
#include "reader/direct/gather_rows_cuda.hpp"
#include "support/test_table.hpp"
#include "support/vector_rows.hpp"

namespace penstock::gpu {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::array kFormats{RowFormat::Bf16, RowFormat::Packed};

Table open(const oracle::WholeTable& whole, Placement placement, Device device,
           TableShard shard = {}, Communicator* group = nullptr) {
  return Table::open(test::spec_of(whole), std::make_shared<test::VectorRows>(whole),
                     {.placement = placement, .shard = shard, .device = device, .group = group});
}

RowIds row_ids(const std::int32_t* data, std::int64_t tokens, int columns) {
  return {.data = data, .tokens = tokens, .columns = columns, .token_stride = columns};
}

Bytes read_on_cpu(const Table& table, const std::vector<std::int32_t>& ids, std::int64_t tokens,
                  RowFormat format) {
  const TableView& view = table.view();
  Bytes out(
      static_cast<std::size_t>(tokens * view.local_columns * staging_row_bytes(view, format)));
  const int columns = static_cast<int>(table.spec().head_sizes.size());
  gather_rows(view, row_ids(ids.data(), tokens, columns), format, out, Device::cpu());
  return out;
}

/// Reads into staging that was full of other bytes, so that a row that is not written shows.
Bytes read_on_gpu(const Table& table, const std::vector<std::int32_t>& ids, std::int64_t tokens,
                  RowFormat format, const GatherOptions& options = {}) {
  const TableView& view = table.view();
  const auto bytes =
      static_cast<std::size_t>(tokens * view.local_columns * staging_row_bytes(view, format));
  const Array<std::int32_t> device_ids(ids);
  const Array<std::byte> out(Bytes(bytes, std::byte{0xA5}));
  const Stream stream;
  const int columns = static_cast<int>(table.spec().head_sizes.size());
  gather_rows(view, row_ids(device_ids.data(), tokens, columns), format, out.span(), table.device(),
              stream.ref(), options);
  return out.read(stream.ref());
}

/// Ids of every kind: good ones, -1, and ids that no table holds.
std::vector<std::int32_t> mixed_ids(const oracle::WholeTable& whole, std::int64_t tokens) {
  std::vector<std::int32_t> ids = test::random_ids(whole, tokens, 3);
  for (std::size_t i = 0; i < ids.size(); i += 5) ids[i] = -1;
  for (std::size_t i = 3; i < ids.size(); i += 17) ids[i] = -7;
  for (std::size_t i = 4; i < ids.size(); i += 19) ids[i] = 1 << 30;
  return ids;
}

void expect_same_rows(const Table& gpu, const Table& cpu, const std::vector<std::int32_t>& ids,
                      std::int64_t tokens) {
  for (const RowFormat format : kFormats) {
    EXPECT_EQ(read_on_gpu(gpu, ids, tokens, format), read_on_cpu(cpu, ids, tokens, format))
        << tokens << " tokens, format " << static_cast<int>(format);
  }
}

const std::vector<std::int64_t> kHeads{97, 101, 103, 107, 109};

constexpr auto kPlacements = {Placement::Device, Placement::Host, Placement::HostShared};

/// A placement as part of a test's name.
std::string name_of(Placement placement) {
  switch (placement) {
    case Placement::Device: return "device";
    case Placement::Host: return "host";
    default: return "host_shared";
  }
}

/// Which table is read: where it lies, how wide its rows are, and which shard of it.
using ReadCase = std::tuple<Placement, int, TableShard>;

class SanitizerRowsOfTable : public testing::TestWithParam<ReadCase> {};

TEST_P(SanitizerRowsOfTable, AreThoseOfTheCpuForEveryKindOfId) {
  const auto& [placement, head_dim, shard] = GetParam();
  const auto whole = test::make_whole_table(head_dim, kHeads);
  const Table gpu = open(whole, placement, kGpu, shard);
  const Table cpu = open(whole, Placement::Host, Device::cpu(), shard);
  const auto ids = mixed_ids(whole, 33);
  expect_same_rows(gpu, cpu, ids, 33);
  EXPECT_EQ(gpu.rejected_ids(), cpu.rejected_ids());
  EXPECT_GT(gpu.rejected_ids(), 0U);
}

std::string read_case_name(const testing::TestParamInfo<ReadCase>& info) {
  const auto& [placement, head_dim, shard] = info.param;
  return name_of(placement) + "_width_" + std::to_string(head_dim) + "_shard_" +
         std::to_string(shard.index) + "_of_" + std::to_string(shard.count);
}

// 2 shards: one column is padded. 7: no whole columns, so rows are cut.
INSTANTIATE_TEST_SUITE_P(
    Tables, SanitizerRowsOfTable,
    testing::Combine(testing::ValuesIn(kPlacements), testing::Values(32, 96, 256),
                     testing::Values(TableShard{0, 1}, TableShard{1, 2}, TableShard{3, 7})),
    read_case_name);

class Rows : public testing::TestWithParam<Placement> {};

TEST_P(Rows, AreThoseOfTheCpuForEveryNumberOfTokens) {
  const auto whole = test::make_whole_table(256, kHeads);
  const Table gpu = open(whole, GetParam(), kGpu);
  const Table cpu = open(whole, Placement::Host, Device::cpu());
  std::vector<std::int64_t> counts(258);
  std::iota(counts.begin(), counts.end(), 0);
  for (std::int64_t power = 512; power <= 8192; power *= 2) {
    counts.insert(counts.end(), {power - 1, power, power + 1});
  }
  const auto ids = mixed_ids(whole, counts.back());
  for (const std::int64_t tokens : counts) {
    const auto used = static_cast<std::size_t>(tokens) * kHeads.size();
    expect_same_rows(gpu, cpu, {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(used)},
                     tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(Placements, Rows, testing::ValuesIn(kPlacements),
                         [](const auto& info) { return name_of(info.param); });

TEST(SanitizerRows, DequantiseEveryCodeWithEveryScale) {
  oracle::WholeTable whole{.head_dim = 256, .head_sizes = {256}, .values = {}, .scales = {}};
  for (int row = 0; row < 256; ++row) {
    for (int code = 0; code < 256; ++code) whole.values.push_back(static_cast<std::uint8_t>(code));
    whole.scales.insert(whole.scales.end(), 8, static_cast<std::uint8_t>(row));
  }
  std::vector<std::int32_t> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  const Table gpu = open(whole, Placement::Device, kGpu);
  const Table cpu = open(whole, Placement::Host, Device::cpu());
  expect_same_rows(gpu, cpu, ids, 256);
}

TEST(SanitizerRows, DoNotDependOnTheGrid) {
  const auto whole = test::make_whole_table(256, kHeads);
  const Table gpu = open(whole, Placement::Device, kGpu);
  const Table cpu = open(whole, Placement::Host, Device::cpu());
  constexpr std::int64_t kTokens = 41;
  const auto ids = mixed_ids(whole, kTokens);
  const Array<std::int32_t> device_ids(ids);
  const auto expected = read_on_cpu(cpu, ids, kTokens, RowFormat::Bf16);
  const Stream stream;
  for (const int rows_per_warp : {1, 2, 4, 8}) {
    for (const int threads : {32, 256, 1024}) {
      for (const int blocks : {1, 3, 64}) {
        const Array<std::byte> out(Bytes(expected.size(), std::byte{0xA5}));
        detail::gather_rows_planned(gpu.view(), row_ids(device_ids.data(), kTokens, 5),
                                    RowFormat::Bf16, out.data(), nullptr,
                                    {blocks, threads, rows_per_warp}, stream.ref());
        EXPECT_EQ(out.read(stream.ref()), expected)
            << rows_per_warp << " rows a warp, " << threads << " threads, " << blocks << " blocks";
      }
    }
  }
}

TEST(SanitizerRows, OfTokensPastTheCountOnTheDeviceAreNotWritten) {
  const auto whole = test::make_whole_table(256, kHeads);
  const Table gpu = open(whole, Placement::Device, kGpu);
  const auto ids = mixed_ids(whole, 40);
  for (const RowFormat format : kFormats) {
    const Bytes all = read_on_gpu(gpu, ids, 40, format);
    for (const int count : {-1, 0, 1, 7, 40, 1000}) {
      const Array<std::int32_t> num_tokens(std::vector<std::int32_t>{count});
      Bytes expected = all;
      const auto written = static_cast<std::size_t>(std::clamp(count, 0, 40)) * all.size() / 40;
      std::fill(expected.begin() + static_cast<std::ptrdiff_t>(written), expected.end(),
                std::byte{0xA5});
      EXPECT_EQ(read_on_gpu(gpu, ids, 40, format, {.num_tokens = num_tokens.data()}), expected);
    }
  }
}

class SanitizerOrderedRows : public testing::TestWithParam<std::tuple<Placement, TableShard>> {};

TEST_P(SanitizerOrderedRows, OfLargeReadsAreThoseOfTheCpu) {
  const auto& [placement, shard] = GetParam();
  constexpr std::int64_t kTokens = 1500;
  const auto whole = test::make_whole_table(256, kHeads);
  const Table gpu = open(whole, placement, kGpu, shard);
  const Table cpu = open(whole, Placement::Host, Device::cpu(), shard);
  const auto ids = mixed_ids(whole, kTokens);
  const std::size_t needed = gather_workspace_bytes(gpu.view(), kTokens, kGpu);
  ASSERT_GT(needed, 0U) << "large enough to be read in order";
  const Array<std::byte> workspace(needed);
  for (const RowFormat format : kFormats) {
    const Bytes all = read_on_cpu(cpu, ids, kTokens, format);
    for (const std::int32_t count : {0, 1, 700, 1500, 5000}) {
      const Array<std::int32_t> num_tokens(std::vector<std::int32_t>{count});
      Bytes expected = all;
      const auto written = std::min<std::size_t>(static_cast<std::size_t>(count), 1500);
      std::fill(expected.begin() + static_cast<std::ptrdiff_t>(written * all.size() / 1500),
                expected.end(), std::byte{0xA5});
      EXPECT_EQ(read_on_gpu(gpu, ids, kTokens, format,
                            {.num_tokens = num_tokens.data(), .workspace = workspace.span()}),
                expected)
          << count << " tokens";
    }
  }
  const std::uint64_t before = gpu.rejected_ids();
  read_on_gpu(gpu, ids, kTokens, RowFormat::Bf16, {.workspace = workspace.span()});
  EXPECT_EQ(gpu.rejected_ids() - before, cpu.rejected_ids() / kFormats.size())
      << "each counts once";
}

// Shards as for the reads of few rows.
INSTANTIATE_TEST_SUITE_P(Tables, SanitizerOrderedRows,
                         testing::Combine(testing::Values(Placement::Host, Placement::HostShared),
                                          testing::Values(TableShard{0, 1}, TableShard{1, 2},
                                                          TableShard{3, 7})),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + "_shard_" +
                                  std::to_string(std::get<1>(info.param).index) + "_of_" +
                                  std::to_string(std::get<1>(info.param).count);
                         });

TEST(OrderedRows, NeedAWorkspaceThatIsLargeEnoughOrNone) {
  const auto whole = test::make_whole_table(256, kHeads);
  const Table gpu = open(whole, Placement::Host, kGpu);
  constexpr std::int64_t kTokens = 1500;
  const auto ids = mixed_ids(whole, kTokens);
  const Array<std::byte> workspace(gather_workspace_bytes(gpu.view(), kTokens, kGpu) - 256);
  EXPECT_THROW(read_on_gpu(gpu, ids, kTokens, RowFormat::Bf16, {.workspace = workspace.span()}),
               Error);
  EXPECT_EQ(gather_workspace_bytes(gpu.view(), 8, kGpu), 0U) << "a read of few rows";
  const Table near = open(whole, Placement::Device, kGpu);
  EXPECT_EQ(gather_workspace_bytes(near.view(), kTokens, kGpu), 0U) << "no translation to save";
}

/// Calls `body(rank)` on a thread per rank; an exception fails the test and frees the other ranks.
template <typename Body>
void run_ranks(std::vector<std::unique_ptr<Communicator>>& group, const Body& body) {
  std::vector<std::thread> threads;
  for (const auto& comm : group) {
    threads.emplace_back([&body, rank = comm.get()] {
      try {
        body(*rank);
      } catch (const std::exception& error) {
        rank->abort(error.what());
        ADD_FAILURE() << "rank " << rank->rank() << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Opens a peer table on `ranks` threads, rank r on GPU r % GPUs, and reads it on every rank.
void read_as_peers(int ranks, const oracle::WholeTable& whole) {
  auto group = make_thread_group(ranks);
  const Table cpu = open(whole, Placement::Host, Device::cpu());
  const auto ids = mixed_ids(whole, 65);
  const int gpus = cuda_device_count();
  run_ranks(group, [&](Communicator& comm) {
    const Device device = Device::cuda(comm.rank() % gpus);
    PENSTOCK_CUDA_CHECK(cudaSetDevice(device.index));
    const Table table = open(whole, Placement::Peer, device, {}, &comm);
    EXPECT_EQ(table.view().num_parts, ranks);
    for (const RowFormat format : kFormats) {
      Buffer device_ids = Buffer::allocate(device, ids.size() * sizeof(std::int32_t));
      copy_bytes(device_ids, std::as_bytes(std::span(ids)));
      const Bytes expected = read_on_cpu(cpu, ids, 65, format);
      const Buffer out = Buffer::zeros(device, expected.size());
      gather_rows(table.view(), row_ids(device_ids.as<std::int32_t>().data(), 65, 5), format,
                  out.as<std::byte>(), device);
      Bytes found(expected.size());
      copy_bytes(found, out);
      EXPECT_EQ(found, expected) << "rank " << comm.rank();
    }
  });
}

TEST(PeerRows, AreThoseOfTheCpuOnEveryRank) {
  std::printf("peer ranks over %d GPU(s)\n", cuda_device_count());
  for (const int ranks : {1, 2, 3}) {
    read_as_peers(ranks, test::make_whole_table(256, kHeads));
    read_as_peers(ranks, test::make_whole_table(64, kHeads));
  }
}

TEST(PeerRows, ServeATableOfFewerRowsThanRanks) {
  read_as_peers(4, test::make_whole_table(256, {1, 1, 1, 1, 1}));
  read_as_peers(8, test::make_whole_table(256, {1, 1, 1, 1, 1}));
}

TEST(Tables, OfAGpuCannotLieInTheCheckpointsPages) {
  const auto whole = test::make_whole_table(256, kHeads);
  EXPECT_THROW(open(whole, Placement::File, kGpu), Error);
}

TEST(Tables, ThatDoNotFitAreOutOfMemoryAndNothingStays) {
  std::size_t before = 0;
  std::size_t total = 0;
  PENSTOCK_CUDA_CHECK(cudaMemGetInfo(&before, &total));
  const auto rows = make_random_rows(1, 1, (std::int64_t{1} << 31) - 1, 256);  // 567 GB
  const TableSpec spec{.layer_id = 1,
                       .head_sizes = {rows->num_rows()},
                       .num_rows = rows->num_rows(),
                       .head_dim = 256};
  try {
    Table::open(spec, rows, {.placement = Placement::Device, .device = kGpu});
    FAIL() << "567 GB found room";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory) << error.what();
  }
  std::size_t after = 0;
  PENSTOCK_CUDA_CHECK(cudaMemGetInfo(&after, &total));
  EXPECT_GE(after, before);  // the driver may have given a page of its own back meanwhile
}

TEST(Tables, OfSeveralRanksShareHostMemoryThatEveryGpuReads) {
  const auto whole = test::make_whole_table(256, kHeads);
  auto group = make_thread_group(2);
  const Table cpu = open(whole, Placement::Host, Device::cpu());
  const auto ids = mixed_ids(whole, 20);
  run_ranks(group, [&](Communicator& comm) {
    PENSTOCK_CUDA_CHECK(cudaSetDevice(kGpu.index));
    const Table table = open(whole, Placement::HostShared, kGpu, {}, &comm);
    expect_same_rows(table, cpu, ids, 20);
  });
}

}  // namespace
}  // namespace penstock::gpu
