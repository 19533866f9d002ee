#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "penstock/table/table.hpp"
#include "support/opened_tables.hpp"
#include "support/process_state.hpp"
#include "support/vector_rows.hpp"
#include "table/sharing/fault_injection.hpp"

namespace penstock {
namespace {

using detail::Stage;
using testing::HasSubstr;

using test::make_rows;
using test::OptionsOfRank;

std::vector<test::OpenedTable> open_on_ranks(int ranks,
                                             const std::shared_ptr<test::VectorRows>& rows,
                                             const OptionsOfRank& change = {},
                                             const CommOptions& comm_options = {}) {
  return test::open_on_ranks(ranks, test::spec_of(rows->table()), rows, change, comm_options);
}

class SharedTable : public test::WithoutFaultsAfter<testing::Test> {};

TEST_F(SharedTable, IsLoadedByOneRankAndReadByAll) {
  for (const int ranks : {1, 2, 3, 8}) {
    const auto rows = make_rows();
    std::mutex mutex;
    std::set<std::int64_t> reads;
    bool has_repeated = false;
    rows->before_read = [&](std::int64_t first) {
      const std::lock_guard lock(mutex);
      has_repeated |= !reads.insert(first).second;
    };
    const auto outcomes = open_on_ranks(ranks, rows);
    EXPECT_FALSE(has_repeated);
    EXPECT_FALSE(reads.empty());
    std::set<const std::byte*> addresses;
    for (const auto& outcome : outcomes) {
      ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
      EXPECT_EQ(outcome.table->status().shared_bytes, ranks > 1 ? 311 * 72 : 0);
      addresses.insert(outcome.table->view().values[0]);
      for (std::int64_t row = 0; row < 311; ++row) {
        EXPECT_TRUE(test::has_row(outcome.table->view(), rows->table(), row));
      }
    }
    EXPECT_EQ(addresses.size(), outcomes.size());  // every rank has a mapping of its own
    EXPECT_EQ(test::mappings_of_shared_tables(), ranks);
  }
  EXPECT_EQ(test::mappings_of_shared_tables(), 0);
}

TEST_F(SharedTable, OutlivesItsCreator) {
  const auto rows = make_rows();
  auto outcomes = open_on_ranks(3, rows);
  outcomes[0].table.reset();
  for (std::int64_t row = 0; row < 311; ++row) {
    EXPECT_TRUE(test::has_row(outcomes[2].table->view(), rows->table(), row));
  }
}

TEST_F(SharedTable, HoldsTheShardThatTheGroupShares) {
  const auto rows = make_rows();
  const auto outcomes = open_on_ranks(2, rows, [](int, TableSpec&, TableOptions& options) {
    options.shard = {.index = 1, .count = 3};
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
    EXPECT_EQ(outcome.table->view().row_begin, 101);
    for (std::int64_t row = 101; row < 204; ++row) {
      EXPECT_TRUE(test::has_row(outcome.table->view(), rows->table(), row));
    }
  }
}

TEST_F(SharedTable, AnEmptyShardIsShareable) {
  const auto rows = make_rows();
  const auto outcomes = open_on_ranks(2, rows, [](int, TableSpec&, TableOptions& options) {
    options.shard = {.index = 0, .count = 400};
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
    EXPECT_EQ(outcome.table->view().row_end, 0);
  }
}

TEST_F(SharedTable, SeveralLayersOpenOneAfterAnother) {
  const auto rows = make_rows();
  run_thread_group(3, [&](Communicator& comm) {
    std::vector<Table> tables;
    for (const int layer : {1, 14, 15}) {
      tables.push_back(Table::open(test::spec_of(rows->table(), layer), rows, {.group = &comm}));
    }
    for (const auto& table : tables) EXPECT_TRUE(test::has_row(table.view(), rows->table(), 310));
  });
}

TEST_F(SharedTable, RefusesArgumentsThatDifferBetweenRanksOnAllOfThem) {
  const std::vector<OptionsOfRank> changes{
      [](int rank, TableSpec& spec, TableOptions&) { spec.layer_id += rank == 1 ? 13 : 0; },
      [](int rank, TableSpec&, TableOptions& options) {
        options.shard = {.index = rank, .count = 3};
      },
      [](int rank, TableSpec&, TableOptions& options) {
        if (rank == 1) options.placement = Placement::Host;
      },
      [](int rank, TableSpec&, TableOptions& options) { options.may_fall_back = rank == 1; },
      [](int rank, TableSpec& spec, TableOptions&) {
        if (rank == 1) spec.head_sizes = {101, 102, 107};
      },
  };
  for (const auto& change : changes) {
    for (const auto& outcome : open_on_ranks(2, make_rows(), change)) {
      EXPECT_EQ(outcome.code, ErrorCode::InvalidArgument);
      EXPECT_THAT(outcome.message, HasSubstr("rank 1 opens"));
    }
  }
}

TEST_F(SharedTable, ABadArgumentOnOneRankIsAnErrorOnAll) {
  const auto outcomes = open_on_ranks(3, make_rows(), [](int rank, TableSpec& spec, TableOptions&) {
    if (rank == 2) spec.num_rows = 5;
  });
  EXPECT_EQ(outcomes[2].code, ErrorCode::InvalidArgument);
  for (const int rank : {0, 1}) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(outcome.code, ErrorCode::PeerFailed);
    EXPECT_THAT(outcome.message, HasSubstr("stage agree: rank 2: "));
  }
}

struct InjectedFault {
  Stage stage = Stage::Create;
  int rank = 0;
};

void PrintTo(const InjectedFault& fault, std::ostream* out) {
  *out << to_string(fault.stage) << "_on_rank_" << fault.rank;
}

class SharedTableFault : public test::WithoutFaultsAfter<testing::TestWithParam<InjectedFault>> {};

TEST_P(SharedTableFault, RaisesOnEveryRankWithRankAndStageAndLeavesNothing) {
  const auto [stage, failing_rank] = GetParam();
  const auto rows = make_rows();
  ASSERT_TRUE(open_on_ranks(3, rows)[0].table.has_value());  // parallel_for has its threads now
  const int descriptors = test::open_descriptors();
  const int threads = test::count_entries("/proc/self/task");
  detail::set_fault_hook([=](int rank, Stage at) {
    if (rank == failing_rank && at == stage) throw Error(ErrorCode::System, "injected");
  });
  const auto outcomes = open_on_ranks(3, rows);
  const std::string expected = "stage " + std::string(to_string(stage)) + ": rank " +
                               std::to_string(failing_rank) + ": injected";
  for (int rank = 0; rank < 3; ++rank) {
    const auto& outcome = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(outcome.table.has_value());
    EXPECT_EQ(outcome.code, rank == failing_rank ? ErrorCode::System : ErrorCode::PeerFailed);
    EXPECT_THAT(outcome.message, HasSubstr(expected));
  }
  EXPECT_EQ(test::open_descriptors(), descriptors);
  EXPECT_EQ(test::mappings_of_shared_tables(), 0);
  EXPECT_EQ(rows.use_count(), 1);
  EXPECT_TRUE(test::comes_down_to_threads(threads));
  detail::set_fault_hook({});
  EXPECT_TRUE(open_on_ranks(3, rows)[1].table.has_value());
}

std::vector<InjectedFault> all_faults() {
  std::vector<InjectedFault> faults;
  for (const Stage stage : {Stage::Agree, Stage::Create, Stage::Reserve, Stage::Map, Stage::Load,
                            Stage::Seal, Stage::Pin}) {
    for (int rank = 0; rank < 3; ++rank) faults.push_back({stage, rank});
  }
  return faults;
}

INSTANTIATE_TEST_SUITE_P(EveryStageAndRank, SharedTableFault, testing::ValuesIn(all_faults()),
                         [](const auto& param) { return testing::PrintToString(param.param); });

TEST_F(SharedTable, NamesEveryRankThatFailed) {
  detail::set_fault_hook([](int rank, Stage stage) {
    if (rank > 0 && stage == Stage::Map) {
      throw Error(ErrorCode::System, "injected " + std::to_string(rank));
    }
  });
  for (const auto& outcome : open_on_ranks(3, make_rows())) {
    EXPECT_THAT(outcome.message, HasSubstr("rank 1: injected 1; rank 2: injected 2"));
  }
}

TEST_F(SharedTable, AFallbackIsTakenAlikeOnAllRanks) {
  detail::set_fault_hook([](int rank, Stage stage) {
    if (rank == 0 && stage == Stage::Reserve) {
      throw Error(ErrorCode::OutOfMemory, "injected shortage");
    }
  });
  const auto rows = make_rows();
  for (const auto& outcome : open_on_ranks(
           3, rows, [](int, TableSpec&, TableOptions& options) { options.may_fall_back = true; })) {
    ASSERT_TRUE(outcome.table.has_value()) << outcome.message;
    EXPECT_EQ(outcome.table->status().placement, Placement::File);
    EXPECT_THAT(outcome.table->status().degraded, HasSubstr("injected shortage"));
    EXPECT_TRUE(test::has_row(outcome.table->view(), rows->table(), 310));
  }
}

TEST_F(SharedTable, AStageMayLastLongerThanTheGroupsDeadline) {
  const auto rows = make_rows();
  rows->before_read = [](std::int64_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2000));
  };
  const CommOptions options{.deadline = std::chrono::milliseconds(1000)};
  for (const auto& outcome : open_on_ranks(2, rows, {}, options)) {
    EXPECT_TRUE(outcome.table.has_value()) << outcome.message;
  }
}

/// 106 MB of rows, 26 reads of a tenth of a second each. None ends before `release` is called.
class SlowRows : public RowSource {
 public:
  static constexpr std::int64_t kRows = 400000;
  static TableSpec spec() {
    return {.layer_id = 1, .head_sizes = {kRows}, .num_rows = kRows, .head_dim = 256};
  }

  std::int64_t num_rows() const override { return kRows; }
  int head_dim() const override { return 256; }
  std::string description() const override { return "slow rows"; }
  void read(std::int64_t, std::span<std::byte>) const override {
    ++reads_;
    is_released_.wait(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  int reads() const { return reads_; }
  void release() {
    is_released_ = true;
    is_released_.notify_all();
  }

 private:
  mutable std::atomic<int> reads_{0};
  std::atomic<bool> is_released_{false};
};

TEST_F(SharedTable, ARankThatLeavesEndsTheOthersBeforeTheLoadIsDone) {
  const auto rows = std::make_shared<SlowRows>();
  auto group = make_thread_group(2, {.deadline = std::chrono::seconds(20)});
  detail::set_fault_hook([&](int rank, Stage stage) {
    if (rank == 1 && stage == Stage::Load) group[1]->abort("rank 1 was told to leave");
  });
  std::vector<std::thread> ranks;
  for (auto& comm : group) {
    ranks.emplace_back([&, comm = comm.get()] {
      set_parallel_threads(1);  // many would begin all reads before anybody leaves
      const TableOptions options{.placement = Placement::HostShared, .group = comm};
      try {
        Table::open(SlowRows::spec(), rows, options);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::PeerFailed);
        EXPECT_THAT(error.what(), HasSubstr("stage load"));
      }
      if (comm->rank() == 1) rows->release();
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_LT(rows->reads(), 26);
  EXPECT_EQ(test::mappings_of_shared_tables(), 0);
}

}  // namespace
}  // namespace penstock
