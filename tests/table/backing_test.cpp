#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/unique_fd.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/table/table.hpp"
#include "support/huge_pages.hpp"
#include "support/opened_tables.hpp"
#include "support/process_state.hpp"
#include "support/temp_dir.hpp"
#include "support/vector_rows.hpp"
#include "table/sharing/fault_injection.hpp"
#include "table/sharing/huge_pages.hpp"
#include "table/sharing/mapping.hpp"
#include "table/sharing/shared_memory.hpp"

// What host_shared does with a backing that is named, and with `auto`.
namespace penstock {
namespace {

using detail::Stage;
using testing::HasSubstr;

using test::make_rows;

/// Opens a table of `rows` on every rank of a thread group.
std::vector<test::OpenedTable> open_with(
    int ranks, const TableSpec& spec, const std::shared_ptr<const RowSource>& rows,
    HostBacking backing, const std::function<void(int, TableOptions&)>& change = {}) {
  return test::open_on_ranks(ranks, spec, rows, [&](int rank, TableSpec&, TableOptions& options) {
    options.backing = backing;
    if (change) change(rank, options);
  });
}

class Backing : public test::WithoutFaultsAfter<testing::Test> {};

class HugetlbFault : public test::WithoutFaultsAfter<testing::TestWithParam<Stage>> {};

TEST_F(Backing, ThatIsNamedIsTaken) {
  const auto rows = make_rows();
  const auto spec = test::spec_of(rows->table());
  for (const auto& outcome : open_with(2, spec, rows, HostBacking::Memfd)) {
    ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
    EXPECT_THAT(outcome.table->status().backing, HasSubstr("memfd"));
    EXPECT_EQ(outcome.table->status().backing_choice, "asked for");
  }
}

TEST_F(Backing, OfASmallTableIsAMemfdAtOnce) {
  const auto rows = make_rows();
  const auto spec = test::spec_of(rows->table());
  for (const auto& outcome : open_with(2, spec, rows, HostBacking::Auto)) {
    ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
    EXPECT_THAT(outcome.table->status().backing, HasSubstr("memfd"));
    EXPECT_EQ(outcome.table->status().backing_choice, "auto, table below 256 MiB");
  }
}

TEST_F(Backing, OfHugePagesHoldsTheRowsOnEveryRank) {
  const test::HugePages pages(4);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const std::int64_t free_pages = test::HugePages::free_pages();
  const auto rows = make_rows();
  {
    const auto outcomes = open_with(3, test::spec_of(rows->table()), rows, HostBacking::Hugetlb);
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
      EXPECT_EQ(outcome.table->status().backing, "hugetlb, 2 MiB pages, sealed");
      EXPECT_EQ(test::permissions_of(outcome.table->view().values[0]), "r--s");
      for (std::int64_t row = 0; row < 311; ++row) {
        EXPECT_TRUE(test::has_row(outcome.table->view(), rows->table(), row));
      }
    }
    EXPECT_EQ(test::HugePages::free_pages(), free_pages - 1);
  }
  EXPECT_EQ(test::HugePages::free_pages(), free_pages);
}

/// The file behind a mapping, found by its address.
detail::UniqueFd open_mapped_file(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/map_files")) {
    const std::string range = entry.path().filename().string();
    if (std::stoull(range, nullptr, 16) != wanted) continue;
    return detail::UniqueFd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
  }
  return {};
}

TEST_F(Backing, IsSealedOnceTheTableIsOpen) {
  const test::HugePages pages(4);
  const auto rows = make_rows();
  for (const HostBacking backing : {HostBacking::Memfd, HostBacking::Hugetlb}) {
    if (backing == HostBacking::Hugetlb && !pages.are_there()) {
      std::printf("not with hugetlb: %s\n", test::HugePages::kWhyNot);
      continue;
    }
    const auto outcomes = open_with(2, test::spec_of(rows->table()), rows, backing);
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
      const auto fd = open_mapped_file(outcome.table->view().values[0]);
      if (!fd) GTEST_SKIP() << "needs the right to open files by /proc/self/map_files";
      EXPECT_NO_THROW(detail::check_sealed(fd.get())) << to_string(backing);
    }
  }
}

TEST_F(Backing, OfHugePagesMayHoldNothing) {
  const auto rows = make_rows();
  const auto outcomes =
      open_with(2, test::spec_of(rows->table()), rows, HostBacking::Hugetlb,
                [](int, TableOptions& options) { options.shard = {.index = 0, .count = 400}; });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.table.has_value()) << outcome.message;
}

TEST_F(Backing, ThatCannotBeHadIsAnErrorOnAllRanks) {
  const test::HugePages pages(1);  // for the lock: nobody else changes the pool
  const std::int64_t needed = test::HugePages::free_pages() + 1;
  const std::int64_t num_rows = needed * (2 << 20) / row_record_bytes(256);
  const TableSpec spec{
      .layer_id = 1, .head_sizes = {num_rows}, .num_rows = num_rows, .head_dim = 256};
  const auto rows = make_random_rows(1, 1, num_rows, 256);
  const auto outcomes = open_with(3, spec, rows, HostBacking::Hugetlb);
  EXPECT_EQ(outcomes[0].code, ErrorCode::OutOfMemory);
  EXPECT_EQ(outcomes[2].code, ErrorCode::PeerFailed);
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.message, HasSubstr("stage create: rank 0: "));
    EXPECT_THAT(outcome.message,
                HasSubstr(std::to_string(needed) + " huge pages of 2 MiB are needed, " +
                          std::to_string(needed - 1) + " are free"));
    EXPECT_THAT(outcome.message, HasSubstr("memfd would work"));
  }
}

TEST_F(Backing, OfTheCudaDriverNeedsAGpu) {
  const auto rows = make_rows();
  const auto outcomes = open_with(2, test::spec_of(rows->table()), rows, HostBacking::CuMem);
  EXPECT_EQ(outcomes[0].code, ErrorCode::Unsupported);
  EXPECT_EQ(outcomes[1].code, ErrorCode::PeerFailed);
  for (const auto& outcome : outcomes) {
    EXPECT_THAT(outcome.message, HasSubstr("backing cumem needs a CUDA device"));
    EXPECT_THAT(outcome.message, HasSubstr("found device cpu; hugetlb and memfd would work"));
  }
}

TEST_F(Backing, IsOfHostSharedOnly) {
  const auto rows = make_rows();
  for (const Placement placement : {Placement::Host, Placement::File, Placement::Device}) {
    const auto outcomes =
        open_with(2, test::spec_of(rows->table()), rows, HostBacking::Memfd,
                  [&](int, TableOptions& options) { options.placement = placement; });
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome.code, ErrorCode::InvalidArgument);
      EXPECT_THAT(outcome.message, HasSubstr("backing memfd is named for placement " +
                                             std::string(to_string(placement))));
    }
  }
}

TEST_F(Backing, MustBeTheSameOnAllRanks) {
  const auto rows = make_rows();
  const auto outcomes = open_with(2, test::spec_of(rows->table()), rows, HostBacking::Auto,
                                  [](int rank, TableOptions& options) {
                                    if (rank == 1) options.backing = HostBacking::Memfd;
                                  });
  for (const auto& outcome : outcomes) {
    EXPECT_EQ(outcome.code, ErrorCode::InvalidArgument);
    EXPECT_THAT(outcome.message, HasSubstr("rank 1 opens"));
  }
}

TEST_P(HugetlbFault, LeavesNothing) {
  const test::HugePages pages(4);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const std::int64_t free_pages = test::HugePages::free_pages();
  const int descriptors = test::open_descriptors();
  const auto rows = make_rows();
  const auto spec = test::spec_of(rows->table());
  for (int failing_rank = 0; failing_rank < 2; ++failing_rank) {
    detail::set_fault_hook([&](int rank, Stage at) {
      if (rank == failing_rank && at == GetParam()) throw Error(ErrorCode::System, "injected");
    });
    for (const auto& outcome : open_with(2, spec, rows, HostBacking::Hugetlb)) {
      EXPECT_THAT(outcome.message,
                  HasSubstr("stage " + std::string(to_string(GetParam())) + ": rank " +
                            std::to_string(failing_rank) + ": injected"));
    }
    EXPECT_EQ(test::open_descriptors(), descriptors);
    EXPECT_EQ(test::mappings_of_shared_tables(), 0);
    EXPECT_EQ(test::HugePages::free_pages(), free_pages);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryStage, HugetlbFault,
                         testing::Values(Stage::Agree, Stage::Create, Stage::Reserve, Stage::Map,
                                         Stage::Load, Stage::Seal, Stage::Pin),
                         [](const auto& param) { return std::string(to_string(param.param)); });

// A table that is large enough for a choice: 256 MiB and a row.
constexpr int kWideDim = 1024;
constexpr std::int64_t kManyRows = (std::int64_t{256} << 20) / row_record_bytes(kWideDim) + 1;

TableSpec large_spec() {
  return {.layer_id = 1, .head_sizes = {kManyRows}, .num_rows = kManyRows, .head_dim = kWideDim};
}

/// Rows of zeros, so that filling takes no time.
class ZeroRows : public RowSource {
 public:
  std::int64_t num_rows() const override { return kManyRows; }
  int head_dim() const override { return kWideDim; }
  void read(std::int64_t, std::span<std::byte>) const override { ++reads; }
  std::string description() const override { return "zeros"; }

  mutable std::atomic<int> reads{0};
};

TEST_F(Backing, OfALargeTableIsHugetlbWhereThePoolHoldsIt) {
  const test::HugePages pages(140);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const TableSpec spec = large_spec();
  const auto rows = std::make_shared<ZeroRows>();
  for (const auto& outcome : open_with(2, spec, rows, HostBacking::Auto)) {
    ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
    EXPECT_THAT(outcome.table->status().backing, HasSubstr("hugetlb"));
    EXPECT_EQ(outcome.table->status().backing_choice, "auto, not probed");
  }
}

/// Pages of the pool that somebody else takes.
detail::Mapping take_huge_pages(std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(count) * detail::kHugePageBytes;
  const auto memory = detail::SharedMemory::create(bytes, detail::PageKind::Huge);
  return detail::Mapping::shared(memory.fd(), bytes, detail::Access::ReadWrite);
}

TEST_F(Backing, GivesWayWhereThePoolShrinksBetweenTheChoiceAndTheReservation) {
  const test::HugePages pages(140);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const TableSpec spec = large_spec();
  const auto rows = std::make_shared<ZeroRows>();
  const std::int64_t free_pages = test::HugePages::free_pages();
  for (const HostBacking backing : {HostBacking::Hugetlb, HostBacking::Auto}) {
    detail::Mapping taken;
    detail::set_fault_hook([&](int rank, Stage at) {
      if (rank == 0 && at == Stage::Reserve) taken = take_huge_pages(free_pages - 100);
    });
    for (const auto& outcome : open_with(2, spec, rows, backing)) {
      const bool is_auto = backing == HostBacking::Auto;
      ASSERT_EQ(outcome.table.has_value(), is_auto) << outcome.message;
      const auto& text = is_auto ? outcome.table->status().backing_choice : outcome.message;
      EXPECT_THAT(text, HasSubstr("stage reserve: rank 0: "));
      EXPECT_THAT(text, HasSubstr("huge pages of 2 MiB are needed, 100 are free"));
    }
  }
  EXPECT_EQ(test::HugePages::free_pages(), free_pages);
}

TEST_F(Backing, ThatOneRankCannotMapGivesWayToTheNextOnAll) {
  const test::HugePages pages(140);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const TableSpec spec = large_spec();
  const std::int64_t free_pages = test::HugePages::free_pages();
  const auto rows = std::make_shared<ZeroRows>();
  std::atomic<int> maps{0};
  detail::set_fault_hook([&](int rank, Stage at) {
    if (rank == 1 && at == Stage::Map && maps++ == 0) throw Error(ErrorCode::System, "injected");
  });
  for (const auto& outcome : open_with(2, spec, rows, HostBacking::Auto)) {
    ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
    EXPECT_THAT(outcome.table->status().backing, HasSubstr("memfd"));
    EXPECT_THAT(outcome.table->status().backing_choice, HasSubstr("not hugetlb: "));
    EXPECT_THAT(outcome.table->status().backing_choice, HasSubstr("rank 1: injected"));
    EXPECT_EQ(outcome.table->status().degraded, "");
  }
  EXPECT_EQ(maps, 2);
  EXPECT_EQ(test::HugePages::free_pages(), free_pages);
}

TEST_F(Backing, ThatIsTheLastOfTheChainIsAnErrorOnAll) {
  const test::HugePages pages(140);
  if (!pages.are_there()) GTEST_SKIP() << test::HugePages::kWhyNot;
  const TableSpec spec = large_spec();
  const auto rows = std::make_shared<ZeroRows>();
  detail::set_fault_hook([](int rank, Stage at) {
    if (rank == 1 && at == Stage::Map) throw Error(ErrorCode::Unsupported, "injected");
  });
  for (const auto& outcome : open_with(2, spec, rows, HostBacking::Auto)) {
    EXPECT_THAT(outcome.message, HasSubstr("stage map: rank 1: injected"));
  }
  EXPECT_EQ(rows->reads, 0);
}

TEST(HugePagePool, CountsWhatNobodyHasAClaimOn) {
  const test::TempDir sys;
  const auto pool = sys.path() / "kernel/mm/hugepages/hugepages-2048kB";
  EXPECT_EQ(detail::free_huge_page_bytes(sys.path()), 0);
  std::filesystem::create_directories(pool);
  std::ofstream(pool / "free_hugepages") << 10;
  std::ofstream(pool / "resv_hugepages") << 4;
  EXPECT_EQ(detail::free_huge_page_bytes(sys.path()), 6 * (2 << 20));
  EXPECT_NO_THROW(detail::check_huge_pages(6 * (2 << 20), sys.path()));
  EXPECT_THROW(detail::check_huge_pages(6 * (2 << 20) + 1, sys.path()), Error);
  std::ofstream(pool / "resv_hugepages") << 11;
  EXPECT_EQ(detail::free_huge_page_bytes(sys.path()), 0);
}

}  // namespace
}  // namespace penstock
