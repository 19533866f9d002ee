#include "penstock/reader/prefetcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/core/error.hpp"
#include "reader/prefetch/prefetch_ring.hpp"
#include "support/vector_rows.hpp"

namespace penstock {
namespace {

constexpr int kColumns = 3;

std::shared_ptr<test::VectorRows> make_rows() {
  return std::make_shared<test::VectorRows>(test::make_whole_table(32, {101, 103, 107}));
}

Table open(const std::shared_ptr<test::VectorRows>& rows, TableShard shard = {}) {
  return Table::open(test::spec_of(rows->table()), rows,
                     {.placement = Placement::Host, .shard = shard});
}

RowIds ids_of(const std::vector<std::int32_t>& ids) {
  return {.data = ids.data(),
          .tokens = static_cast<std::int64_t>(ids.size()) / kColumns,
          .columns = kColumns,
          .token_stride = kColumns};
}

std::vector<std::byte> expected_rows(const oracle::WholeTable& table, const TableView& view,
                                     const std::vector<std::int32_t>& ids, RowFormat format) {
  const oracle::ShardBounds bounds{view.column_begin, view.column_end, view.local_columns,
                                   view.row_begin, view.row_end};
  std::vector<std::byte> all;
  for (std::size_t at = 0; at < ids.size(); at += kColumns) {
    for (int column = 0; column < view.local_columns; ++column) {
      const auto row =
          oracle::staging_row(table, bounds, ids.data() + at, column, format == RowFormat::Packed);
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  return all;
}

bool has_rows(const Ticket& ticket, const std::vector<std::byte>& expected) {
  return std::ranges::equal(ticket.rows(), expected);
}

/// A read that has been started, and what it must give.
struct Read {
  Ticket ticket;
  std::vector<std::byte> expected;
};

class PrefetcherSlots : public testing::TestWithParam<int> {};

TEST_P(PrefetcherSlots, GivesExactRowsForEveryTokenCountInAnyOrderOfConsumption) {
  const auto rows = make_rows();
  const Table table = open(rows);
  Prefetcher prefetcher(table, {.max_tokens = 2049, .slots = GetParam()});
  std::vector<std::int64_t> counts;
  for (std::int64_t tokens = 0; tokens <= 257; ++tokens) counts.push_back(tokens);
  for (std::int64_t power = 512; power <= 2048; power *= 2) {
    counts.insert(counts.end(), {power - 1, power, power + 1});
  }
  std::mt19937 random(static_cast<std::uint32_t>(GetParam()));
  std::ranges::shuffle(counts, random);
  std::vector<Read> held;
  const auto consume_one = [&] {
    const auto chosen = held.begin() + static_cast<std::ptrdiff_t>(random() % held.size());
    chosen->ticket.wait();
    EXPECT_TRUE(has_rows(chosen->ticket, chosen->expected)) << chosen->ticket.tokens();
    held.erase(chosen);
  };
  for (const std::int64_t tokens : counts) {
    while (std::ssize(held) == GetParam() || (!held.empty() && random() % 2 == 0)) consume_one();
    const auto ids = test::random_ids(rows->table(), tokens, static_cast<std::uint32_t>(tokens));
    auto ticket = prefetcher.start(ids_of(ids));
    EXPECT_EQ(ticket.tokens(), tokens);
    held.push_back(
        {std::move(ticket), expected_rows(rows->table(), table.view(), ids, RowFormat::Bf16)});
  }
  while (!held.empty()) consume_one();
}

INSTANTIATE_TEST_SUITE_P(Ring, PrefetcherSlots, testing::Values(1, 2, 3, 4));

TEST(Prefetcher, ReadsShardsAndPackedRows) {
  const auto rows = make_rows();
  const auto ids = test::random_ids(rows->table(), 50, 1);
  for (const int count : {1, 2, 3, 5}) {
    for (int index = 0; index < count; ++index) {
      for (const RowFormat format : {RowFormat::Bf16, RowFormat::Packed}) {
        const Table table = open(rows, {index, count});
        Prefetcher prefetcher(table, {.max_tokens = 50, .slots = 1, .format = format});
        auto ticket = prefetcher.start(ids_of(ids));
        ticket.wait();
        EXPECT_TRUE(has_rows(ticket, expected_rows(rows->table(), table.view(), ids, format)));
      }
    }
  }
}

TEST(Prefetcher, SlotsKeepTheirAddresses) {
  const auto rows = make_rows();
  Prefetcher prefetcher(open(rows), {.max_tokens = 8, .slots = 2});
  const auto ids = test::random_ids(rows->table(), 8, 1);
  const auto* first = prefetcher.start(ids_of(ids)).rows().data();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(prefetcher.start(ids_of(ids)).rows().data(), first);
}

TEST(Prefetcher, CountsItsStagingMemory) {
  const Prefetcher bf16(open(make_rows()), {.max_tokens = 10, .slots = 3});
  EXPECT_EQ(bf16.staging_bytes(), 3 * 10 * kColumns * 64);
  const Prefetcher packed(open(make_rows()),
                          {.max_tokens = 10, .slots = 3, .format = RowFormat::Packed});
  EXPECT_EQ(packed.staging_bytes(), 3 * 10 * kColumns * 40);
  EXPECT_EQ(packed.options().max_tokens, 10);
  EXPECT_EQ(packed.table().spec().head_dim, 32);
}

TEST(Prefetcher, RefusesWhatItCannotStart) {
  const auto rows = make_rows();
  const Table table = open(rows);
  EXPECT_THROW(Prefetcher(table, {.max_tokens = 0}), Error);
  EXPECT_THROW(Prefetcher(table, {.slots = 0}), Error);
  EXPECT_THROW(Prefetcher(table, {.max_tokens = std::int64_t{1} << 60}), Error);
  Prefetcher prefetcher(table, {.max_tokens = 4, .slots = 1});
  const auto ids = test::random_ids(rows->table(), 5, 1);
  EXPECT_THROW(prefetcher.start(ids_of(ids)), Error);
  EXPECT_THROW(prefetcher.start({ids.data(), -1, kColumns, kColumns}), Error);
  EXPECT_THROW(prefetcher.start({ids.data(), 2, 2, kColumns}), Error);
  EXPECT_THROW(prefetcher.start({ids.data(), 2, kColumns, 2}), Error);
  EXPECT_THROW(prefetcher.start({nullptr, 2, kColumns, kColumns}), Error);
  EXPECT_NO_THROW(prefetcher.start({ids.data(), 4, kColumns, kColumns}).wait());
}

TEST(Prefetcher, SaysSoWhenEverySlotIsHeld) {
  const auto rows = make_rows();
  Prefetcher prefetcher(open(rows), {.max_tokens = 4, .slots = 2});
  const auto ids = test::random_ids(rows->table(), 4, 1);
  auto first = prefetcher.start(ids_of(ids));
  const auto second = prefetcher.start(ids_of(ids));
  try {
    prefetcher.start(ids_of(ids));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), testing::HasSubstr("all 2 slots"));
  }
  first.release();
  EXPECT_NO_THROW(prefetcher.start(ids_of(ids)));
}

TEST(Ticket, IsEmptyAfterAMoveAndAfterRelease) {
  const auto rows = make_rows();
  Prefetcher prefetcher(open(rows), {.max_tokens = 4, .slots = 1});
  const auto ids = test::random_ids(rows->table(), 4, 1);
  auto ticket = prefetcher.start(ids_of(ids));
  Ticket other = std::move(ticket);
  EXPECT_THROW(ticket.wait(), Error);  // NOLINT(bugprone-use-after-move): empty by contract
  EXPECT_THROW(ticket.rows(), Error);
  other.wait();
  other.release();
  EXPECT_NO_THROW(other.release());
  EXPECT_THROW(other.tokens(), Error);
  EXPECT_THROW(Ticket().wait(), Error);
}

TEST(Ticket, AssigningOverOneGivesItsSlotBack) {
  const auto rows = make_rows();
  Prefetcher prefetcher(open(rows), {.max_tokens = 4, .slots = 2});
  const auto ids = test::random_ids(rows->table(), 4, 1);
  auto ticket = prefetcher.start(ids_of(ids));
  for (int i = 0; i < 10; ++i) ticket = prefetcher.start(ids_of(ids));
  ticket.wait();
}

TEST(Ticket, OutlivesItsPrefetcherAndItsTable) {
  const auto rows = make_rows();
  const auto ids = test::random_ids(rows->table(), 40, 1);
  std::optional<Table> table = open(rows);
  const auto expected = expected_rows(rows->table(), table->view(), ids, RowFormat::Bf16);
  std::optional<Prefetcher> prefetcher;
  prefetcher.emplace(*table, PrefetchOptions{.max_tokens = 40});
  auto ticket = prefetcher->start(ids_of(ids));
  prefetcher.reset();
  table.reset();
  ticket.wait();
  EXPECT_TRUE(has_rows(ticket, expected));
}

/// A ring whose reads do what a test says.
class ScriptedRing : public testing::Test {
 protected:
  ScriptedRing() : rows_(make_rows()), table_(open(rows_)) {}

  std::shared_ptr<detail::PrefetchRing> make_ring(int slots, detail::ReadRows read) {
    return detail::make_prefetch_ring_cpu(table_, {.max_tokens = 8, .slots = slots},
                                          std::move(read));
  }

  std::shared_ptr<detail::PrefetchSlot> start(detail::PrefetchRing& ring, std::int64_t tokens) {
    return ring.start({ids_.data(), tokens, kColumns, kColumns}, {}, nullptr);
  }

  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(24, 5);
  std::shared_ptr<test::VectorRows> rows_;
  Table table_;
};

TEST_F(ScriptedRing, AnErrorOfAReadSurfacesInItsOwnTicketOnly) {
  const auto ring = make_ring(3, [](const RowIds& ids, std::span<std::byte>) {
    if (ids.tokens == 2) throw std::runtime_error("disk is gone");
  });
  const auto good = start(*ring, 1);
  const auto bad = start(*ring, 2);
  const auto later = start(*ring, 3);
  EXPECT_THROW(bad->wait({}), std::runtime_error);
  EXPECT_THROW(bad->wait({}), std::runtime_error);
  EXPECT_NO_THROW(good->wait({}));
  EXPECT_NO_THROW(later->wait({}));
  bad->release({});
  const auto again = start(*ring, 1);  // the slot of the failed read works again
  EXPECT_NO_THROW(again->wait({}));
}

TEST_F(ScriptedRing, ADroppedTicketJoinsItsRead) {
  std::atomic<bool> has_ended{false};
  const auto ring = make_ring(1, [&](const RowIds&, std::span<std::byte>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    has_ended = true;
  });
  start(*ring, 1)->release({});
  EXPECT_TRUE(has_ended);
}

TEST_F(ScriptedRing, CopiesIdsBeforeStartReturns) {
  std::promise<void> go;
  std::vector<std::int32_t> seen;
  const auto ring =
      make_ring(1, [&, gate = go.get_future().share()](const RowIds& ids, std::span<std::byte>) {
        gate.wait();
        seen.assign(ids.data, ids.data + ids.tokens * ids.token_stride);
      });
  const auto slot = start(*ring, 8);
  const auto before = ids_;
  std::ranges::fill(ids_, -7);
  go.set_value();
  slot->wait({});
  EXPECT_EQ(seen, before);
}

TEST_F(ScriptedRing, WaitsForItsOwnReadAndForNoOther) {
  std::promise<void> go;
  const auto ring =
      make_ring(2, [gate = go.get_future().share()](const RowIds& ids, std::span<std::byte>) {
        if (ids.tokens == 2) gate.wait();
      });
  const auto first = start(*ring, 1);
  const auto stuck = start(*ring, 2);
  first->wait({});  // would never return if it waited for the second
  go.set_value();
  stuck->wait({});
}

TEST_F(ScriptedRing, TellsHowLongReadingAndWaitingTook) {
  const auto ring = make_ring(1, [](const RowIds&, std::span<std::byte>) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  const auto slot = start(*ring, 1);
  slot->wait({});
  EXPECT_GE(slot->read_time(), std::chrono::milliseconds(20));
  EXPECT_GT(slot->wait_time(), std::chrono::nanoseconds(0));
}

TEST_F(ScriptedRing, GivesNothingWhenNoSlotIsFree) {
  const auto ring = make_ring(1, [](const RowIds&, std::span<std::byte>) {});
  const auto slot = start(*ring, 1);
  EXPECT_EQ(start(*ring, 1), nullptr);
  slot->release({});
  EXPECT_NE(start(*ring, 1), nullptr);
}

// Three tables over rings of two slots: a slot that was overwritten while its ticket was held
// would show rows of another step.
TEST(PrefetcherSteps, NeverOverwriteASlotThatIsHeld) {
  const auto rows = make_rows();
  std::vector<Table> tables;
  std::vector<Prefetcher> prefetchers;
  for (int i = 0; i < 3; ++i) {
    tables.push_back(open(rows, {.index = i, .count = 3}));
    prefetchers.emplace_back(tables.back(), PrefetchOptions{.max_tokens = 5, .slots = 2});
  }
  std::vector<Read> previous;
  for (std::uint32_t step = 0; step < 200; ++step) {
    const auto ids = test::random_ids(rows->table(), 1 + step % 5, step);
    std::vector<Read> current;
    for (std::size_t i = 0; i < 3; ++i) {
      current.push_back({prefetchers[i].start(ids_of(ids)),
                         expected_rows(rows->table(), tables[i].view(), ids, RowFormat::Bf16)});
    }
    for (auto& read : previous) {
      read.ticket.wait();
      ASSERT_TRUE(has_rows(read.ticket, read.expected)) << step;
    }
    previous = std::move(current);
  }
}

}  // namespace
}  // namespace penstock
