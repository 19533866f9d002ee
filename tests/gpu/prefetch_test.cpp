#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gpu/gpu_support.hpp"
#include "penstock/core/error.hpp"
#include "penstock/reader/prefetcher.hpp"
#include "reader/prefetch/prefetch_faults.hpp"
#include "support/test_table.hpp"
#include "support/vector_rows.hpp"

namespace penstock::gpu {
namespace {

using Bytes = std::vector<std::byte>;
using Ids = std::vector<std::int32_t>;

const std::vector<std::int64_t> kHeads{97, 101, 103, 107};
constexpr int kColumns = 4;

// Tokens of a read in the order of its ids, and of one that goes through the table in order.
constexpr std::int64_t kFewTokens = 64;
constexpr std::int64_t kManyTokens = 1100;

// Far longer than a read of these tables, far shorter than anybody waits.
constexpr int kDelayMicroseconds = 20000;

oracle::WholeTable whole_table(std::uint32_t seed = 7) {
  return test::make_whole_table(256, kHeads, seed);
}

Table open(const oracle::WholeTable& whole, Placement placement = Placement::Host) {
  return Table::open(test::spec_of(whole), std::make_shared<test::VectorRows>(whole),
                     {.placement = placement, .device = kGpu});
}

RowIds row_ids(const Array<std::int32_t>& ids) {
  return {.data = ids.data(),
          .tokens = static_cast<std::int64_t>(ids.count()) / kColumns,
          .columns = kColumns,
          .token_stride = kColumns};
}

Bytes rows_of(const Table& table, const Ids& ids) {
  const Array<std::int32_t> device_ids(ids);
  const Array<std::byte> out(ids.size() * 512);
  const Stream stream;
  gather_rows(table.view(), row_ids(device_ids), RowFormat::Bf16, out.span(), kGpu, stream.ref());
  return out.read(stream.ref());
}

/// What a consumer sees: copies the ticket's rows in the order of `stream`.
void copy_rows(const Ticket& ticket, const Array<std::byte>& copy, const Stream& stream) {
  PENSTOCK_CUDA_CHECK(cudaMemcpyAsync(copy.data(), ticket.rows().data(), ticket.rows().size(),
                                      cudaMemcpyDeviceToDevice, stream.get()));
}

Bytes read_rows(const Ticket& ticket, const Stream& stream) {
  const Array<std::byte> copy(ticket.rows().size());
  copy_rows(ticket, copy, stream);
  return copy.read(stream.ref());
}

/// Leaves faults behind only while it lives.
class FaultScope {
 public:
  explicit FaultScope(const detail::PrefetchFaults& faults) { detail::prefetch_faults() = faults; }
  ~FaultScope() { detail::prefetch_faults() = {}; }
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;
};

TEST(SanitizerPrefetch, GivesTheRowsOfEachTicketInAnyOrder) {
  const auto whole = whole_table();
  for (const Placement placement : {Placement::Device, Placement::Host, Placement::HostShared}) {
    const Table table = open(whole, placement);
    Prefetcher prefetcher(table, {.max_tokens = 50, .slots = 3});
    const Stream stream;
    for (std::uint32_t round = 0; round < 4; ++round) {
      std::vector<Ids> ids;
      std::vector<Array<std::int32_t>> device_ids;
      std::vector<Ticket> tickets;
      for (const std::uint32_t tokens : {50U, 1U, 17U}) {
        ids.push_back(test::random_ids(whole, tokens, 10 * round + tokens));
        device_ids.emplace_back(ids.back());
        tickets.push_back(prefetcher.start(row_ids(device_ids.back()), stream.ref()));
      }
      for (const std::size_t i : {2U, 0U, 1U}) {
        tickets[i].wait(stream.ref());
        EXPECT_EQ(read_rows(tickets[i], stream), rows_of(table, ids[i]));
        tickets[i].release(stream.ref());
      }
    }
  }
}

TEST(SanitizerPrefetch, RefusesAReadWithoutAFreeSlotAndGoesOnAfterARelease) {
  const auto whole = whole_table();
  Prefetcher prefetcher(open(whole), {.max_tokens = 8, .slots = 1});
  const Array<std::int32_t> ids(test::random_ids(whole, 8, 1));
  const Stream stream;
  Ticket held = prefetcher.start(row_ids(ids), stream.ref());
  EXPECT_THROW(prefetcher.start(row_ids(ids), stream.ref()), Error);
  held.release(stream.ref());
  EXPECT_NO_THROW(prefetcher.start(row_ids(ids), stream.ref()));
}

TEST(SanitizerPrefetch, RowsOutliveThePrefetcherAndTheTable) {
  const auto whole = whole_table();
  const Ids ids = test::random_ids(whole, 30, 2);
  const Array<std::int32_t> device_ids(ids);
  const Stream stream;
  Ticket ticket;
  {
    Prefetcher prefetcher(open(whole), {.max_tokens = 30});
    ticket = prefetcher.start(row_ids(device_ids), stream.ref());
  }
  ticket.wait(stream.ref());
  EXPECT_EQ(read_rows(ticket, stream), rows_of(open(whole), ids));
}

/// The rows that a consumer sees when the ids appear late on the producer's stream.
Bytes rows_of_late_ids(const Table& table, const Ids& stale, const Ids& ids) {
  Prefetcher prefetcher(table, {.max_tokens = kManyTokens, .slots = 1});
  const Array<std::int32_t> device_ids(stale);
  const Array<std::int32_t> late_ids(ids);
  const Array<std::byte> copy(ids.size() * 512);  // now: an allocation may wait for the device
  const Stream producer;
  const Stream consumer;
  delay(producer, kDelayMicroseconds);
  PENSTOCK_CUDA_CHECK(cudaMemcpyAsync(device_ids.data(), late_ids.data(), ids.size() * sizeof(int),
                                      cudaMemcpyDeviceToDevice, producer.get()));
  Ticket ticket = prefetcher.start(row_ids(device_ids), producer.ref());
  ticket.wait(consumer.ref());
  copy_rows(ticket, copy, consumer);
  Bytes rows = copy.read(consumer.ref());
  producer.synchronize();
  return rows;
}

TEST(Prefetch, WaitsForItsIdsAndTheConsumerForTheRows) {
  const auto whole = whole_table();
  const Table table = open(whole);
  for (const std::int64_t tokens : {kFewTokens, kManyTokens}) {
    const Ids stale = test::random_ids(whole, tokens, 1);
    const Ids ids = test::random_ids(whole, tokens, 2);
    const Bytes expected = rows_of(table, ids);
    EXPECT_EQ(rows_of_late_ids(table, stale, ids), expected);
    {
      const FaultScope fault({.skips_producer = true});
      EXPECT_EQ(rows_of_late_ids(table, stale, ids), rows_of(table, stale));
    }
    {
      const FaultScope fault({.skips_consumer = true});
      EXPECT_NE(rows_of_late_ids(table, stale, ids), expected);
    }
  }
}

/// The rows that a slow consumer sees while the next read wants the same slot.
Bytes rows_of_slow_consumer(const Table& table, const Ids& ids, const Ids& next_ids) {
  Prefetcher prefetcher(table, {.max_tokens = kManyTokens, .slots = 1});
  const Array<std::int32_t> device_ids(ids);
  const Array<std::int32_t> device_next_ids(next_ids);
  const Array<std::byte> copy(ids.size() * 512);  // now: an allocation may wait for the device
  const Stream producer;
  const Stream consumer;
  Ticket ticket = prefetcher.start(row_ids(device_ids), producer.ref());
  ticket.wait(consumer.ref());
  delay(consumer, kDelayMicroseconds);
  copy_rows(ticket, copy, consumer);
  ticket.release(consumer.ref());
  const Ticket next = prefetcher.start(row_ids(device_next_ids), producer.ref());
  return copy.read(consumer.ref());
}

TEST(OrderedPrefetch, WaitsForItsOrder) {
  const auto whole = whole_table();
  const Table table = open(whole);
  const Ids stale = test::random_ids(whole, kManyTokens, 1);
  const Ids ids = test::random_ids(whole, kManyTokens, 2);
  const FaultScope fault({.skips_order = true});
  EXPECT_NE(rows_of_late_ids(table, stale, ids), rows_of(table, ids));
}

TEST(Prefetch, LeavesASlotAloneUntilItsConsumerHasReadIt) {
  const auto whole = whole_table();
  const Table table = open(whole);
  for (const std::int64_t tokens : {kFewTokens, kManyTokens}) {
    const Ids ids = test::random_ids(whole, tokens, 1);
    const Ids next_ids = test::random_ids(whole, tokens, 2);
    EXPECT_EQ(rows_of_slow_consumer(table, ids, next_ids), rows_of(table, ids));
    const FaultScope fault({.skips_reuse = true});
    EXPECT_EQ(rows_of_slow_consumer(table, ids, next_ids), rows_of(table, next_ids));
  }
}

TEST(SanitizerPrefetch, JoinsADroppedTicketInsideTheCapture) {
  const auto whole = whole_table();
  Prefetcher prefetcher(open(whole), {.max_tokens = 8});
  const Array<std::int32_t> ids(test::random_ids(whole, 8, 1));
  const Stream stream;
  const Graph graph(stream, [&] {
    static_cast<void>(prefetcher.start(row_ids(ids), stream.ref()));
    static_cast<void>(prefetcher.start(row_ids(ids), stream.ref()));
    static_cast<void>(prefetcher.start(row_ids(ids), stream.ref()));  // of the first one's slot
  });
  graph.launch(stream);
  stream.synchronize();
  // And the ring still works outside.
  Ticket ticket = prefetcher.start(row_ids(ids), stream.ref());
  ticket.wait(stream.ref());
  stream.synchronize();
}

TEST(SanitizerPrefetch, TellsThatAnEagerReadCannotBeAwaitedInsideACapture) {
  const auto whole = whole_table();
  const Table table = open(whole);
  Prefetcher prefetcher(table, {.max_tokens = 8});
  const Ids values = test::random_ids(whole, 8, 1);
  const Array<std::int32_t> ids(values);
  const Stream stream;
  Ticket ticket = prefetcher.start(row_ids(ids), stream.ref());
  const Array<std::byte> copy(ticket.rows().size());
  const auto consume = [&] {
    PENSTOCK_CUDA_CHECK(cudaMemcpyAsync(copy.data(), ticket.rows().data(), copy.count(),
                                        cudaMemcpyDeviceToDevice, stream.get()));
  };
  const Graph refusal(stream, [&] { EXPECT_THROW(ticket.wait(stream.ref()), Error); });
  // What works: wait where the graph will be launched; then the graph may read the rows.
  ticket.wait(stream.ref());
  const Graph graph(stream, [&] {
    ticket.wait(stream.ref());
    consume();
  });
  graph.launch(stream);
  EXPECT_EQ(copy.read(stream.ref()), rows_of(table, values));
}

/// Two layers read at step entry and consumed later, in one graph; every byte is compared on the
/// GPU with a plain read of the same ids.
class TwoLayers {
 public:
  TwoLayers(Placement placement, std::int64_t max_tokens)
      : max_tokens_(max_tokens),
        wholes_{whole_table(1), whole_table(2)},
        tables_{open(wholes_[0], placement), open(wholes_[1], placement)},
        num_tokens_(1),
        differences_(1) {
    for (std::size_t layer = 0; layer < 2; ++layer) {
      prefetchers_.emplace_back(tables_[layer], PrefetchOptions{.max_tokens = max_tokens});
      ids_.emplace_back(max_tokens * kColumns);
      expected_.emplace_back(max_tokens * kColumns * 512);
    }
  }

  void step(const Stream& stream) {
    std::vector<Ticket> tickets;
    for (std::size_t layer = 0; layer < 2; ++layer) {
      tickets.push_back(
          prefetchers_[layer].start(row_ids(ids_[layer]), stream.ref(), num_tokens_.data()));
    }
    for (std::size_t layer = 0; layer < 2; ++layer) {
      gather_rows(tables_[layer].view(), row_ids(ids_[layer]), RowFormat::Bf16,
                  expected_[layer].span(), kGpu, stream.ref(), {.num_tokens = num_tokens_.data()});
      tickets[layer].wait(stream.ref());
      count_differences(stream, tickets[layer].rows().data(), expected_[layer].data(),
                        std::int64_t{kColumns} * 512, num_tokens_.data(), differences_.data());
      tickets[layer].release(stream.ref());
    }
  }

  /// New ids and a new count, in the order of `stream`.
  void change(const Stream& stream, std::mt19937& random) {
    // The staging of the upload must live until it has been copied: one block per step.
    next_ids_.push_back(
        test::random_ids(wholes_[0], max_tokens_, static_cast<std::uint32_t>(random())));
    counts_.push_back(
        static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(max_tokens_ + 1)));
    const Ids& ids = next_ids_.back();
    for (const auto& device_ids : ids_)
      upload(stream, device_ids.data(), ids.data(), ids.size() * 4);
    upload(stream, num_tokens_.data(), &counts_.back(), 4);
  }

  void forget_uploads() {
    next_ids_.clear();
    counts_.clear();
    counts_.reserve(1024);
  }

  unsigned long long differences(const Stream& stream) const {
    return differences_.read(stream.ref())[0];
  }

 private:
  static void upload(const Stream& stream, void* to, const void* from, std::size_t bytes) {
    PENSTOCK_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream.get()));
  }

  std::int64_t max_tokens_;
  std::vector<oracle::WholeTable> wholes_;
  std::vector<Table> tables_;
  std::vector<Prefetcher> prefetchers_;
  std::vector<Array<std::int32_t>> ids_;
  std::vector<Array<std::byte>> expected_;
  Array<std::int32_t> num_tokens_;
  Array<unsigned long long> differences_;
  std::vector<Ids> next_ids_;
  std::vector<std::int32_t> counts_;
};

void replay(Placement placement, std::int64_t max_tokens, int replays) {
  TwoLayers layers(placement, max_tokens);
  const Stream stream;
  std::mt19937 random(5);
  const Graph graph(stream, [&] { layers.step(stream); });
  for (int i = 0; i < replays; ++i) {
    if (i % 1000 == 0) {
      stream.synchronize();
      layers.forget_uploads();
    }
    layers.change(stream, random);
    graph.launch(stream);
    if (i % 100 == 7) layers.step(stream);  // eager steps between replays keep the ring in order
  }
  EXPECT_EQ(layers.differences(stream), 0U);
}

TEST(Prefetch, OneGraphServesTenThousandStepsOfTwoLayers) {
  replay(Placement::Host, kFewTokens, 10000);
}

TEST(OrderedPrefetch, OneGraphServesManySteps) {
  replay(Placement::HostShared, kManyTokens, 500);
}

TEST(SanitizerPrefetch, OneGraphServesManySteps) {
  replay(Placement::Device, kFewTokens, 20);
}

TEST(SanitizerOrderedPrefetch, OneGraphServesManySteps) {
  replay(Placement::Host, kManyTokens, 20);
}

}  // namespace
}  // namespace penstock::gpu
