#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "penstock/core/parallel.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table_view.hpp"
#include "table/sharing/mapping.hpp"

// Reads of 8,192 tokens (196,608 random rows of 264 bytes) from a table of 2 GiB in host memory: the
// reader, what a plain memcpy of the same rows takes, and three layouts of a row.
//
//   reader_bench --benchmark_repetitions=9 --benchmark_report_aggregates_only
//
// Axes: threads; huge pages (1) or 4 KiB pages (0).
namespace penstock {
namespace {

constexpr int kHeadDim = 256;
constexpr std::int64_t kScaleBytes = kHeadDim / 32;
constexpr std::int64_t kRecordBytes = row_record_bytes(kHeadDim);
constexpr std::int64_t kRows = (std::int64_t{2} << 30) / kRecordBytes;
constexpr std::int64_t kTokens = 8192;
constexpr int kColumns = 24;
constexpr std::int64_t kReads = kTokens * kColumns;
constexpr std::int64_t kGrain = 64;
constexpr std::int64_t kAhead = 16;

/// Fresh ids for every read, so that no cache keeps the rows: 32 steps, used in turn.
const std::vector<std::int32_t>& ids_of_step(std::int64_t step) {
  static const auto steps = [] {
    std::mt19937_64 random(1);
    std::vector<std::vector<std::int32_t>> all(32);
    for (auto& ids : all) {
      ids.resize(static_cast<std::size_t>(kReads));
      for (auto& id : ids) id = static_cast<std::int32_t>(random() % kRows);
    }
    return all;
  }();
  return steps[static_cast<std::size_t>(step) % steps.size()];
}

struct RowAddress {
  const std::byte* values;
  const std::byte* scales;
};

/// 264 bytes: values, then scales.
struct RecordLayout {
  static constexpr std::int64_t kTableBytes = kRows * kRecordBytes;
  static RowAddress find(const std::byte* table, std::int64_t id) {
    const std::byte* row = table + id * kRecordBytes;
    return {row, row + kHeadDim};
  }
};

/// Blocks of 4 KiB: 15 rows of values, each aligned to 256 bytes, then their 15 scales.
struct BlockLayout {
  static constexpr std::int64_t kBlockRows = 15;
  static constexpr std::int64_t kBlockBytes = 4096;
  static constexpr std::int64_t kTableBytes = (kRows / kBlockRows + 1) * kBlockBytes;
  static RowAddress find(const std::byte* table, std::int64_t id) {
    const std::byte* block = table + id / kBlockRows * kBlockBytes;
    const std::int64_t row = id % kBlockRows;
    return {block + row * kHeadDim, block + kBlockRows * kHeadDim + row * kScaleBytes};
  }
};

/// All values, then all scales.
struct SplitLayout {
  static constexpr std::int64_t kTableBytes = kRows * (kHeadDim + kScaleBytes);
  static RowAddress find(const std::byte* table, std::int64_t id) {
    return {table + id * kHeadDim, table + kRows * kHeadDim + id * kScaleBytes};
  }
};

/// Memory for a table, and for what is read from it.
struct Memory {
  detail::Mapping table;
  std::vector<std::byte> out;

  Memory(std::int64_t table_bytes, std::int64_t out_bytes, bool has_huge_pages)
      : table(detail::Mapping::anonymous(static_cast<std::size_t>(table_bytes))),
        out(static_cast<std::size_t>(out_bytes)) {
    ::madvise(table.data(), table.bytes(), has_huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    table.reserve(detail::StopFlag{});
    // Codes of every kind under scale byte 127, so that dequantising does its usual work.
    std::memset(table.data(), 127, table.bytes());
  }
};

void report(benchmark::State& state, std::int64_t row_bytes) {
  state.SetItemsProcessed(state.iterations() * kReads);
  state.SetBytesProcessed(state.iterations() * kReads * row_bytes);
}

/// One gather_rows of a table of records.
void gather(benchmark::State& state, RowFormat format) {
  set_parallel_threads(static_cast<int>(state.range(0)));
  const std::int64_t row_bytes = format == RowFormat::Packed ? kRecordBytes : 2 * kHeadDim;
  Memory memory(RecordLayout::kTableBytes, kReads * row_bytes, state.range(1) != 0);
  TableView view;
  view.values[0] = memory.table.data();
  view.scales[0] = memory.table.data() + kHeadDim;
  view.value_stride = view.scale_stride = kRecordBytes;
  view.rows_per_part = view.row_end = view.num_rows = kRows;
  view.head_dim = kHeadDim;
  view.column_end = view.local_columns = kColumns;
  std::int64_t step = 0;
  for (auto _ : state) {
    const auto& ids = ids_of_step(step++);
    gather_rows(view, {ids.data(), kTokens, kColumns, kColumns}, format, memory.out, Device::cpu());
  }
  report(state, kRecordBytes);
}

void gather_packed(benchmark::State& state) {
  gather(state, RowFormat::Packed);
}

void gather_bf16(benchmark::State& state) {
  gather(state, RowFormat::Bf16);
}

/// The baseline: memcpy of the same records, nothing else.
void plain_memcpy(benchmark::State& state) {
  set_parallel_threads(static_cast<int>(state.range(0)));
  Memory memory(RecordLayout::kTableBytes, kReads * kRecordBytes, state.range(1) != 0);
  std::int64_t step = 0;
  for (auto _ : state) {
    const auto& ids = ids_of_step(step++);
    parallel_for(kReads, kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t id = ids[static_cast<std::size_t>(i)];
        std::memcpy(memory.out.data() + i * kRecordBytes, memory.table.data() + id * kRecordBytes,
                    kRecordBytes);
      }
    });
    benchmark::ClobberMemory();
  }
  report(state, kRecordBytes);
}

/// Copies records out of a layout; the same loop, with the same prefetch, for each.
template <typename Layout>
void copy_layout(benchmark::State& state) {
  set_parallel_threads(static_cast<int>(state.range(0)));
  Memory memory(Layout::kTableBytes, kReads * kRecordBytes, state.range(1) != 0);
  const std::byte* table = memory.table.data();
  std::int64_t step = 0;
  for (auto _ : state) {
    const auto& ids = ids_of_step(step++);
    parallel_for(kReads, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t found = begin;
      for (std::int64_t i = begin; i < end; ++i) {
        for (; found < end && found < i + kAhead; ++found) {
          const auto row = Layout::find(table, ids[static_cast<std::size_t>(found)]);
          for (int at = 0; at < kHeadDim; at += 64) __builtin_prefetch(row.values + at);
          __builtin_prefetch(row.values + kHeadDim - 1);
          __builtin_prefetch(row.scales);
        }
        const auto row = Layout::find(table, ids[static_cast<std::size_t>(i)]);
        std::memcpy(memory.out.data() + i * kRecordBytes, row.values, kHeadDim);
        std::memcpy(memory.out.data() + i * kRecordBytes + kHeadDim, row.scales, kScaleBytes);
      }
    });
    benchmark::ClobberMemory();
  }
  report(state, kRecordBytes);
}

/// Dequantising rows that lie in a cache: the arithmetic alone.
void dequantize_cached(benchmark::State& state) {
  set_parallel_threads(1);
  constexpr std::size_t kCachedRows = 64;
  std::vector<std::byte> values(kCachedRows * kHeadDim), scales(values.size() / 32, std::byte{121});
  std::vector<std::byte> out(2 * values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i * 7);
  for (auto _ : state) {
    dequantize_rows(values, scales, kHeadDim, out);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * std::int64_t{kCachedRows});
}

#define PENSTOCK_ROW_BENCHMARK(function) \
  BENCHMARK(function)->ArgNames({"threads", "huge"})->ArgsProduct({{1, 2}, {1, 0}})->UseRealTime()

PENSTOCK_ROW_BENCHMARK(plain_memcpy);
PENSTOCK_ROW_BENCHMARK(gather_packed);
PENSTOCK_ROW_BENCHMARK(gather_bf16);
PENSTOCK_ROW_BENCHMARK(copy_layout<RecordLayout>);
PENSTOCK_ROW_BENCHMARK(copy_layout<BlockLayout>);
PENSTOCK_ROW_BENCHMARK(copy_layout<SplitLayout>);
BENCHMARK(dequantize_cached);

}  // namespace
}  // namespace penstock
