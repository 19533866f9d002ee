#include "penstock/table/table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"
#include "support/process_state.hpp"
#include "support/sanitizers.hpp"
#include "support/vector_rows.hpp"

namespace penstock {
namespace {

using testing::HasSubstr;

std::shared_ptr<test::VectorRows> make_rows(std::vector<std::int64_t> head_sizes,
                                            int head_dim = 64) {
  return std::make_shared<test::VectorRows>(
      test::make_whole_table(head_dim, std::move(head_sizes)));
}

std::string error_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

class TablePlacement : public testing::TestWithParam<Placement> {};

TEST_P(TablePlacement, HoldsExactlyTheRowsOfEveryColumnShard) {
  const auto rows = make_rows({7, 11, 5, 13, 3});
  const auto spec = test::spec_of(rows->table());
  for (const int count : {1, 2, 3, 5}) {
    const auto expected = column_shards(spec.head_sizes, count);
    for (int index = 0; index < count; ++index) {
      const auto table =
          Table::open(spec, rows, {.placement = GetParam(), .shard = {index, count}});
      const auto& shard = expected[static_cast<std::size_t>(index)];
      const TableView& view = table.view();
      EXPECT_FALSE(table.status().is_row_sharded);
      EXPECT_EQ(view.column_begin, shard.column_start);
      EXPECT_EQ(view.column_end, shard.column_end);
      EXPECT_EQ(view.local_columns, shard.local_columns);
      EXPECT_EQ(view.row_begin, shard.row_start);
      EXPECT_EQ(view.row_end, shard.row_end);
      EXPECT_EQ(view.num_rows, spec.num_rows);
      EXPECT_EQ(view.is_packed(), GetParam() != Placement::File);
      for (std::int64_t row = view.row_begin; row < view.row_end; ++row) {
        EXPECT_TRUE(test::has_row(view, rows->table(), row)) << row;
      }
    }
  }
}

TEST_P(TablePlacement, HoldsRowsOfEveryColumnWhereColumnsDoNotDivide) {
  const auto rows = make_rows({7, 11, 5});
  const auto spec = test::spec_of(rows->table());
  for (const int count : {4, 23, 40}) {  // 40 shards of 23 rows: some are empty
    for (int index = 0; index < count; ++index) {
      const auto table =
          Table::open(spec, rows, {.placement = GetParam(), .shard = {index, count}});
      const RowRange range = row_shard(23, index, count);
      EXPECT_TRUE(table.status().is_row_sharded);
      EXPECT_EQ(table.view().row_begin, range.begin);
      EXPECT_EQ(table.view().row_end, range.end);
      EXPECT_EQ(table.view().column_begin, 0);
      EXPECT_EQ(table.view().column_end, 3);
      EXPECT_EQ(table.view().local_columns, 3);
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        EXPECT_TRUE(test::has_row(table.view(), rows->table(), row)) << row;
      }
    }
  }
}

TEST_P(TablePlacement, LoadsTablesLongerThanOneRead) {
  const auto rows = make_rows({9001, 9011}, 256);  // 4.8 MB
  const auto table = Table::open(test::spec_of(rows->table()), rows, {.placement = GetParam()});
  for (std::int64_t row = 0; row < 18012; ++row) {
    ASSERT_TRUE(test::has_row(table.view(), rows->table(), row)) << row;
  }
}

TEST_P(TablePlacement, StaysValidWhileSomethingKeepsItAlive) {
  const auto rows = make_rows({7, 11, 5});
  TableView view;
  std::shared_ptr<const void> keep_alive;
  {
    const auto table = Table::open(test::spec_of(rows->table()), rows, {.placement = GetParam()});
    view = table.view();
    keep_alive = table.keep_alive();
  }
  for (std::int64_t row = 0; row < 23; ++row) {
    EXPECT_TRUE(test::has_row(view, rows->table(), row));
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, TablePlacement,
                         testing::Values(Placement::Auto, Placement::Host, Placement::HostShared,
                                         Placement::File),
                         [](const auto& param) { return std::string(to_string(param.param)); });

TEST(TableStatus, SaysWhatWasPlacedWhere) {
  const auto rows = make_rows({7, 11, 5});
  const auto spec = test::spec_of(rows->table());
  const auto host = Table::open(spec, rows, {.placement = Placement::Host}).status();
  EXPECT_EQ(host.placement, Placement::Host);
  EXPECT_EQ(host.resident_bytes, 23 * 72);
  EXPECT_EQ(host.shared_bytes, 0);
  EXPECT_THAT(host.backing, HasSubstr("private memory, 4 KiB pages"));
  EXPECT_EQ(host.degraded, "");
  EXPECT_GT(host.load_seconds, 0);
  const auto shared = Table::open(spec, rows).status();
  EXPECT_EQ(shared.placement, Placement::HostShared);
  EXPECT_THAT(shared.backing, HasSubstr("memfd, 4 KiB pages, sealed"));
  const auto file = Table::open(spec, rows, {.placement = Placement::File}).status();
  EXPECT_EQ(file.resident_bytes, 0);
  EXPECT_THAT(file.backing, HasSubstr("rows of a test"));
}

TEST(TableMemory, IsReadOnlyOnceOpened) {
  const auto rows = make_rows({7, 11, 5});
  const auto spec = test::spec_of(rows->table());
  const auto host = Table::open(spec, rows, {.placement = Placement::Host});
  const auto shared = Table::open(spec, rows, {.placement = Placement::HostShared});
  EXPECT_EQ(test::permissions_of(host.view().values[0]), "r--p");
  EXPECT_EQ(test::permissions_of(shared.view().values[0]), "r--s");
}

TEST(TableMemory, IsGoneWithTheLastHandle) {
  const auto rows = make_rows({7, 11, 5});
  const auto spec = test::spec_of(rows->table());
  const int descriptors = test::open_descriptors();
  for (const Placement placement : {Placement::Host, Placement::HostShared, Placement::File}) {
    auto first = std::make_unique<Table>(Table::open(spec, rows, {.placement = placement}));
    const auto second = std::make_unique<Table>(*first);
    EXPECT_EQ(test::open_descriptors(), descriptors);  // a mapping needs no descriptor
    first.reset();
    EXPECT_TRUE(test::has_row(second->view(), rows->table(), 22));
  }
  EXPECT_EQ(test::mappings_of_shared_tables(), 0);
  EXPECT_EQ(rows.use_count(), 1);
}

TEST(TableOpen, RefusesWhatContradictsItself) {
  const auto rows = make_rows({7, 11, 5});
  const auto good = test::spec_of(rows->table());
  const auto refuses = [&](TableSpec spec, const TableOptions& options, const char* text) {
    const auto message =
        error_of([&] { Table::open(spec, rows, options); }, ErrorCode::InvalidArgument);
    EXPECT_THAT(message, HasSubstr(text));
  };
  auto spec = good;
  spec.head_dim = 48;
  refuses(spec, {}, "head_dim is 48");
  spec = good;
  spec.head_dim = 32;
  refuses(spec, {}, "23 rows of 64 elements");
  spec = good;
  spec.num_rows = 22;
  refuses(spec, {}, "23 rows");
  spec = good;
  spec.num_rows = -1;
  refuses(spec, {}, "-1 rows");
  spec = good;
  spec.num_rows = (std::int64_t{1} << 31) + 1;
  refuses(spec, {}, "2^31");
  spec = good;
  spec.head_sizes = {};
  refuses(spec, {}, "no columns");
  spec = good;
  spec.head_sizes = {7, 11, 6};
  refuses(spec, {}, "24 rows together");
  spec = good;
  spec.head_sizes = {30, -7};
  refuses(spec, {}, "-7");
  refuses(good, {.shard = {2, 2}}, "shard 2 of 2");
  refuses(good, {.shard = {-1, 2}}, "shard -1 of 2");
  refuses(good, {.shard = {0, 0}}, "shard 0 of 0");
  error_of([&] { Table::open(good, nullptr); }, ErrorCode::InvalidArgument);
}

TEST(TableOpen, SaysWhatWouldWorkWhereAPlacementCannotBeHad) {
  if (build::has_cuda) GTEST_SKIP() << "this build has CUDA";
  const auto rows = make_rows({7, 11, 5});
  const auto spec = test::spec_of(rows->table());
  for (const Placement placement : {Placement::Device, Placement::Peer}) {
    const auto message = error_of([&] { Table::open(spec, rows, {.placement = placement}); },
                                  ErrorCode::Unsupported);
    EXPECT_THAT(message, HasSubstr("host_shared"));
    EXPECT_THAT(message, HasSubstr("a build with CUDA"));
  }
  const auto random = make_random_rows(1, 1, 23, 64);
  const auto message = error_of([&] { Table::open(spec, random, {.placement = Placement::File}); },
                                ErrorCode::Unsupported);
  EXPECT_THAT(message, HasSubstr("random rows"));
}

TEST(TableOpen, FallsBackOnlyWhereAllowedAndAloud) {
  if (build::has_cuda) GTEST_SKIP() << "this build has CUDA";
  const auto rows = make_rows({7, 11, 5});
  const auto spec = test::spec_of(rows->table());
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel level, std::string_view text) {
    if (level == LogLevel::Warning) warnings.emplace_back(text);
  });
  const auto table =
      Table::open(spec, rows, {.placement = Placement::Device, .may_fall_back = true});
  set_log_sink({});
  EXPECT_EQ(table.status().placement, Placement::HostShared);
  EXPECT_THAT(table.status().degraded, HasSubstr("host_shared in place of device"));
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(warnings[0], HasSubstr("DEGRADED"));
  EXPECT_TRUE(test::has_row(table.view(), rows->table(), 5));
}

TEST(TableOpen, PassesOnWhatTheSourceFailsWithAndLeavesNothing) {
  const auto rows = make_rows({7, 11, 5});
  rows->before_read = [](std::int64_t) { throw Error(ErrorCode::CorruptFile, "block 7 is bad"); };
  const int descriptors = test::open_descriptors();
  for (const Placement placement : {Placement::Host, Placement::HostShared}) {
    const auto message =
        error_of([&] { Table::open(test::spec_of(rows->table()), rows, {.placement = placement}); },
                 ErrorCode::CorruptFile);
    EXPECT_THAT(message, HasSubstr("stage load: rank 0: block 7 is bad"));
  }
  EXPECT_EQ(test::open_descriptors(), descriptors);
  EXPECT_EQ(test::mappings_of_shared_tables(), 0);
  EXPECT_EQ(rows.use_count(), 1);
}

/// Lowers a limit of this process for as long as it lives.
class LoweredLimit {
 public:
  LoweredLimit(__rlimit_resource resource, rlim_t limit) : resource_(resource) {
    getrlimit(resource, &before_);
    const rlimit lowered{limit, before_.rlim_max};
    setrlimit(resource, &lowered);
  }
  ~LoweredLimit() { setrlimit(resource_, &before_); }
  LoweredLimit(const LoweredLimit&) = delete;
  LoweredLimit& operator=(const LoweredLimit&) = delete;

 private:
  __rlimit_resource resource_;
  rlimit before_{};
};

TEST(TableLimits, FileSizeLimitIsAnErrorAndNoSignal) {
  const auto rows = make_random_rows(1, 1, 100000, 256);
  const TableSpec spec{.layer_id = 1, .head_sizes = {100000}, .num_rows = 100000, .head_dim = 256};
  const LoweredLimit limit(RLIMIT_FSIZE, 1 << 20);
  const auto message = error_of([&] { Table::open(spec, rows); }, ErrorCode::OutOfMemory);
  EXPECT_THAT(message, HasSubstr("stage create"));
  EXPECT_THAT(message, HasSubstr("26400000 bytes"));
  EXPECT_THAT(message, HasSubstr("1048576"));
}

TEST(TableLimits, DescriptorLimitIsAnErrorThatLeavesNothing) {
  if (test::kSanitizers.find("undefined") != std::string_view::npos) {
    GTEST_SKIP() << "the sanitizer opens a pipe to find out whether it may read an object's type";
  }
  const auto rows = make_rows({7, 11, 5});
  const auto spec = test::spec_of(rows->table());
  const int descriptors = test::open_descriptors();
  {
    const LoweredLimit limit(RLIMIT_NOFILE, 1);
    error_of([&] { Table::open(spec, rows); }, ErrorCode::System);
  }
  EXPECT_EQ(test::open_descriptors(), descriptors);
  EXPECT_EQ(Table::open(spec, rows).status().placement, Placement::HostShared);
}

TEST(TableLimits, AddressSpaceLimitIsAnErrorForBothHostPlacements) {
  constexpr std::int64_t kRows = 2000000;  // 528 MB of records
  const auto rows = make_random_rows(1, 1, kRows, 256);
  const TableSpec spec{.layer_id = 1, .head_sizes = {kRows}, .num_rows = kRows, .head_dim = 256};
  const LoweredLimit limit(RLIMIT_AS, test::address_space_bytes() + (rlim_t{128} << 20));
  for (const Placement placement : {Placement::Host, Placement::HostShared}) {
    const auto message = error_of([&] { Table::open(spec, rows, {.placement = placement}); },
                                  ErrorCode::OutOfMemory);
    EXPECT_THAT(message, HasSubstr("mmap of 53"));
  }
}

}  // namespace
}  // namespace penstock
