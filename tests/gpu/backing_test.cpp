// What the memory of host_shared is made of, as GPUs see it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/check.hpp"
#include "gpu/gpu_support.hpp"
#include "gpu/record_check.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/table/table.hpp"
#include "support/child_process.hpp"
#include "support/huge_pages.hpp"
#include "support/process_state.hpp"
#include "table/placements/placements_cuda.hpp"
#include "table/sharing/fault_injection.hpp"

namespace penstock::gpu {
namespace {

using detail::Stage;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::int64_t kRecordBytes = row_record_bytes(256);
constexpr std::int64_t kFewRows = 10'007;
constexpr std::int64_t kManyRows = (std::int64_t{300} << 20) / kRecordBytes;  // enough to choose

struct Opened {
  std::optional<Table> table;
  std::string message;
};

/// Opens a table on every rank of a thread group, rank r for GPU r % GPUs.
std::vector<Opened> open_on_gpus(int ranks, const std::shared_ptr<const RowSource>& rows,
                                 HostBacking backing) {
  std::vector<Opened> opened(static_cast<std::size_t>(ranks));
  run_thread_group(ranks, [&](Communicator& comm) {
    auto& mine = opened[static_cast<std::size_t>(comm.rank())];
    try {
      mine.table = Table::open(one_column(*rows), rows,
                               {.placement = Placement::HostShared,
                                .device = Device::cuda(comm.rank() % cuda_device_count()),
                                .group = &comm,
                                .backing = backing});
    } catch (const Error& error) {
      mine.message = error.what();
    }
  });
  return opened;
}

/// Huge pages where the backing needs them. Why the test cannot be done, or empty.
std::string prepare(HostBacking backing, std::optional<test::HugePages>& pages) {
  if (backing == HostBacking::CuMem) return detail::cumem_refusal(kGpu);
  if (backing != HostBacking::Hugetlb) return {};
  pages.emplace(16);
  return pages->are_there() ? "" : test::HugePages::kWhyNot;
}

class GpuBacking : public testing::TestWithParam<HostBacking> {
 protected:
  void SetUp() override {
    const std::string why_not = prepare(GetParam(), pages_);
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
  ~GpuBacking() override { detail::set_fault_hook({}); }

  std::optional<test::HugePages> pages_;
};

class GpuBackingChoice : public testing::Test {
 protected:
  ~GpuBackingChoice() override { detail::set_fault_hook({}); }
};

TEST_P(GpuBacking, HoldsTheRowsOfTheCpuBitForBitOnEveryRank) {
  const auto rows = make_random_rows(3, 1, kFewRows, 256);
  for (const int ranks : {1, 2, 3}) {
    for (const auto& [table, message] : open_on_gpus(ranks, rows, GetParam())) {
      ASSERT_TRUE(table.has_value()) << message;
      EXPECT_TRUE(reads_right(*table, *rows, 0, kFewRows)) << ranks << " ranks";
      EXPECT_THAT(table->status().backing, StartsWith(std::string(to_string(GetParam()))));
      EXPECT_EQ(table->status().backing_choice, "asked for");
    }
  }
}

TEST_P(GpuBacking, MayHoldNothing) {
  const auto rows = make_random_rows(3, 1, 0, 256);
  for (const auto& [table, message] : open_on_gpus(2, rows, GetParam())) {
    EXPECT_TRUE(table.has_value()) << message;
  }
}

TEST_P(GpuBacking, LeavesNothingWhereAStageFailsOnARank) {
  const auto rows = make_random_rows(3, 1, kFewRows, 256);
  static_cast<void>(open_on_gpus(2, rows, GetParam()));  // the driver opens what it keeps
  const int descriptors = test::open_descriptors();
  for (const Stage stage :
       {Stage::Create, Stage::Reserve, Stage::Map, Stage::Load, Stage::Seal, Stage::Pin}) {
    for (int failing_rank = 0; failing_rank < 2; ++failing_rank) {
      detail::set_fault_hook([&](int rank, Stage at) {
        if (rank == failing_rank && at == stage) throw Error(ErrorCode::System, "injected");
      });
      for (const auto& [table, message] : open_on_gpus(2, rows, GetParam())) {
        EXPECT_FALSE(table.has_value());
        EXPECT_THAT(message, HasSubstr("stage " + std::string(to_string(stage)) + ": rank " +
                                       std::to_string(failing_rank) + ": injected"));
      }
      EXPECT_EQ(test::open_descriptors(), descriptors) << to_string(stage);
    }
  }
  detail::set_fault_hook({});
  for (const auto& [table, message] : open_on_gpus(2, rows, GetParam())) {
    EXPECT_TRUE(table.has_value()) << message;
  }
}

/// The program beside this one that opens a table in a process of its own.
std::vector<std::string> rank_command(int rank, int size, HostBacking backing, const char* what) {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string address =
      "unix:@penstock-gpu-test-" + std::to_string(::getpid()) + "-" + std::to_string(size);
  return {(folder / "backing_rank").string(),
          std::to_string(rank),
          std::to_string(size),
          address,
          std::string(to_string(backing)),
          what};
}

TEST_P(GpuBacking, OutlivesTheProcessThatMadeIt) {
  test::ChildProcess creator(rank_command(0, 2, GetParam(), "leave"));
  test::ChildProcess reader(rank_command(1, 2, GetParam(), "outlive"));
  EXPECT_EQ(reader.read_line(), "right");
  EXPECT_EQ(creator.read_line(), "");  // it was killed
}

TEST_P(GpuBacking, EndsWithAnErrorWhereARankIsKilledOnTheWay) {
  const std::int64_t free_pages = test::HugePages::free_pages();
  for (const char* stage : {"create", "reserve", "map", "load", "seal", "pin"}) {
    for (const int dying : {0, 1}) {
      test::ChildProcess killed(rank_command(dying, 2, GetParam(), stage));
      test::ChildProcess other(rank_command(1 - dying, 2, GetParam(), "outlive"));
      const std::string line = other.read_line();
      EXPECT_THAT(line, StartsWith("error PeerFailed Table::open: stage ")) << stage;
      EXPECT_THAT(line, HasSubstr("rank " + std::to_string(dying))) << stage;
    }
  }
  if (pages_) {
    EXPECT_EQ(test::HugePages::free_pages(), free_pages);
  }
}

TEST_P(GpuBacking, IsAsReadOnlyAsItsStatusSays) {
  test::ChildProcess process(rank_command(0, 1, GetParam(), "write"));
  const std::string line = process.read_line();
  std::printf("%s\n", line.c_str());
  ASSERT_THAT(line, StartsWith("host "));
  const bool is_closed = line.ends_with("sealed") || line.ends_with("read-only by access flags");
  if (is_closed || line.ends_with("for the host alone")) {
    EXPECT_THAT(line, HasSubstr("host kept"));
  }
  if (GetParam() != HostBacking::CuMem) return;  // what a GPU may do to registered memory varies
  if (is_closed || line.ends_with("for the GPU alone")) {
    EXPECT_THAT(line, HasSubstr("device kept"));
  }
}

INSTANTIATE_TEST_SUITE_P(Each, GpuBacking,
                         testing::Values(HostBacking::CuMem, HostBacking::Hugetlb,
                                         HostBacking::Memfd),
                         [](const auto& param) { return std::string(to_string(param.param)); });

TEST_F(GpuBackingChoice, OfALargeTableIsMeasured) {
  const auto rows = make_random_rows(3, 1, kManyRows, 256);
  const auto opened = open_on_gpus(2, rows, HostBacking::Auto);
  for (const auto& [table, message] : opened) {
    ASSERT_TRUE(table.has_value()) << message;
    const TableStatus& status = table->status();
    EXPECT_THAT(status.backing_choice, StartsWith("auto, probed with 256 MiB: "));
    EXPECT_THAT(status.backing_choice, HasSubstr(" s/GiB"));
    EXPECT_THAT(status.backing_choice, HasSubstr(" M rows/s"));
    EXPECT_EQ(status.backing_choice, opened[0].table->status().backing_choice);
    EXPECT_TRUE(reads_right(*table, *rows, kManyRows - 5000, 5000));
  }
  std::printf("%s\n%s\n", opened[0].table->status().backing.c_str(),
              opened[0].table->status().backing_choice.c_str());
}

TEST_F(GpuBackingChoice, GivesWayOnAllRanksWhereOneCannotMap) {
  if (const auto why_not = detail::cumem_refusal(kGpu); !why_not.empty()) GTEST_SKIP() << why_not;
  const auto rows = make_random_rows(3, 1, kManyRows, 256);
  std::atomic<int> maps{0};
  detail::set_fault_hook([&](int rank, Stage at) {
    if (rank == 1 && at == Stage::Map && maps++ == 0) throw Error(ErrorCode::System, "injected");
  });
  const auto opened = open_on_gpus(2, rows, HostBacking::Auto);
  for (const auto& [table, message] : opened) {
    ASSERT_TRUE(table.has_value()) << message;
    EXPECT_THAT(table->status().backing_choice, HasSubstr("rank 1: injected"));
    EXPECT_EQ(table->status().degraded, "");
    EXPECT_TRUE(reads_right(*table, *rows, 0, 5000));
  }
  EXPECT_EQ(maps, 2);
}

TEST_F(GpuBackingChoice, OfSeveralPiecesReadsAcrossTheirBorders) {
  if (const auto why_not = detail::cumem_refusal(kGpu); !why_not.empty()) GTEST_SKIP() << why_not;
  constexpr std::int64_t kPieceBytes = std::int64_t{2} << 30;
  constexpr std::int64_t kRows = (2 * kPieceBytes + (std::int64_t{16} << 20)) / kRecordBytes;
  const auto rows = make_random_rows(5, 1, kRows, 256);
  for (const auto& [table, message] : open_on_gpus(2, rows, HostBacking::CuMem)) {
    ASSERT_TRUE(table.has_value()) << message;
    EXPECT_THAT(table->status().backing, StartsWith("cumem, 3 pieces"));
    for (const std::int64_t border : {std::int64_t{1}, kPieceBytes, 2 * kPieceBytes}) {
      const std::int64_t first = std::max<std::int64_t>(0, border / kRecordBytes - 2000);
      EXPECT_TRUE(reads_right(*table, *rows, first, 4000)) << "row " << first;
    }
    EXPECT_TRUE(reads_right(*table, *rows, kRows - 4000, 4000));
  }
}

}  // namespace
}  // namespace penstock::gpu
