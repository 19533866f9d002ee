#include "cli/bench/lookup_rank.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "cli/bench/largest_of.hpp"
#include "cli/bench/random_numbers.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "penstock/table/row_source.hpp"

namespace penstock::cli {
namespace {

constexpr int kIdSets = 24;
constexpr std::uint64_t kSeed = 1;

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t rows, int rank) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  RandomWords words(0x9E3779B97F4A7C15 + static_cast<std::uint64_t>(rank));
  for (auto& id : ids) {
    id = static_cast<std::int32_t>(words.next() % static_cast<std::uint64_t>(rows));
  }
  return ids;
}

Placement placement_of(const LookupBenchOptions& options) {
  const auto placement = parse_placement(options.placement);
  if (placement && *placement != Placement::Auto && *placement != Placement::File) {
    return *placement;
  }
  throw Error(ErrorCode::InvalidArgument, "bench: --placement is " + options.placement +
                                              ", needs device, host, host_shared or peer");
}

HostBacking backing_of(const LookupBenchOptions& options) {
  if (const auto backing = parse_host_backing(options.backing)) return *backing;
  throw Error(ErrorCode::InvalidArgument,
              "bench: --backing is " + options.backing + ", needs auto, cumem, hugetlb or memfd");
}

Buffer filled(Device device, std::span<const std::int32_t> values) {
  return Buffer::copy_of(std::as_bytes(values), device);
}

/// Memory that ranks share or spread needs to know them all.
Communicator* group_for(Placement placement, Communicator& comm) {
  const bool is_common = placement == Placement::HostShared || placement == Placement::Peer;
  return is_common && comm.size() > 1 ? &comm : nullptr;
}

}  // namespace

Table open_bench_table(const LookupBenchOptions& options, Placement placement, TableShard shard,
                       Device device, Communicator* group) {
  const auto rows = static_cast<std::int64_t>(options.gib * 1073741824.0 / kLookupRowBytes);
  TableSpec spec{.layer_id = 1, .head_sizes = {}, .num_rows = rows, .head_dim = kLookupDim};
  for (std::int64_t column = 0; column < kLookupColumns; ++column) {
    spec.head_sizes.push_back((column + 1) * rows / kLookupColumns -
                              column * rows / kLookupColumns);
  }
  TableOptions table{.placement = placement, .shard = shard, .device = device, .group = group};
  // The table of another placement that a measurement compares with has no backing to choose.
  if (placement == placement_of(options)) table.backing = backing_of(options);
  return Table::open(spec, make_random_rows(kSeed, spec.layer_id, rows, kLookupDim), table);
}

LookupRank::LookupRank(const LookupBenchOptions& options, Communicator& comm)
    : comm_(comm),
      repeat_(options.repeat),
      device_(options.device == "cuda" ? Device::cuda(comm.rank()) : Device::cpu()),
      max_tokens_(*std::ranges::max_element(options.tokens)),
      table_(open_bench_table(options, placement_of(options), {}, device_,
                              group_for(placement_of(options), comm))),
      stream_(Stream::create(device_)),
      begin_(Event::create(device_)),
      end_(Event::create(device_)),
      ids_(filled(device_,
                  random_ids(std::int64_t{kIdSets} * (options.in_graph ? kReadsInGraph : 1) *
                                 max_tokens_ * kLookupColumns,
                             table_.spec().num_rows, comm.rank()))),
      graph_ids_(Buffer::zeros(device_, options.in_graph ? ids_.bytes() / kIdSets : 0)),
      out_(Buffer::zeros(device_, static_cast<std::size_t>(max_tokens_) * kLookupColumns *
                                      kLookupDim * sizeof(BF16))),
      workspace_(
          Buffer::zeros(device_, gather_workspace_bytes(table_.view(), max_tokens_, device_))) {}

RowIds LookupRank::ids(std::int64_t tokens) {
  const bool in_graph = graph_ids_.bytes() > 0;
  const std::int64_t set = turn_++ % (in_graph ? kReadsInGraph : kIdSets);
  const Buffer& sets = in_graph ? graph_ids_ : ids_;
  return {.data = sets.as<const std::int32_t>().data() + set * max_tokens_ * kLookupColumns,
          .tokens = tokens,
          .columns = kLookupColumns,
          .token_stride = kLookupColumns};
}

void LookupRank::renew_ids() {
  const auto bytes = static_cast<std::int64_t>(graph_ids_.bytes());
  copy_strided(graph_ids_.data(), bytes, ids_.data() + launch_++ % kIdSets * bytes, bytes, bytes, 1,
               stream_.ref());
}

void LookupRank::read(std::int64_t tokens, RowFormat format, StreamRef stream) {
  read(tokens, format, stream, workspace_.as<std::byte>());
}

void LookupRank::read_as_ids_come(std::int64_t tokens, RowFormat format, StreamRef stream) {
  read(tokens, format, stream, {});
}

bool LookupRank::reads_in_order(std::int64_t tokens) const {
  return gather_workspace_bytes(table_.view(), tokens, device_) > 0;
}

void LookupRank::read(std::int64_t tokens, RowFormat format, StreamRef stream,
                      std::span<std::byte> workspace) {
  const std::int64_t bytes = tokens * kLookupColumns * staging_row_bytes(table_.view(), format);
  gather_rows(table_.view(), ids(tokens), format, out().first(static_cast<std::size_t>(bytes)),
              device_, stream, {.workspace = workspace});
}

void LookupRank::read_as_engine(std::int64_t tokens, EngineGrid grid, StreamRef stream) {
  engine_lookup(table_.view(), ids(tokens).data, tokens * kLookupColumns, grid, out_.as<BF16>(),
                device_, stream);
}

void LookupRank::copy_rows(std::int64_t tokens) {
  const TableView& view = table_.view();
  const std::int32_t* row_ids = ids(tokens).data;
  constexpr std::int64_t kRowsPerRange = 256;
  constexpr auto kBytes = static_cast<std::size_t>(kLookupRowBytes);
  parallel_for(tokens * kLookupColumns, kRowsPerRange, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(out_.data() + static_cast<std::size_t>(i) * kBytes,
                  view.values[0] + row_ids[i] * view.value_stride, kBytes);
    }
  });
}

double LookupRank::time(const std::function<void()>& enqueue, const std::function<void()>& before) {
  stream_.synchronize();
  comm_.barrier();
  if (before) before();
  begin_.record(stream_.ref());
  enqueue();
  end_.record(stream_.ref());
  const std::chrono::duration<double, std::milli> time = end_.since(begin_);
  return largest_of(comm_, time.count());
}

Spread LookupRank::measure(const std::function<void()>& enqueue, int count) {
  std::vector<double> times;
  constexpr int kWarmUp = 3;
  for (int i = -kWarmUp; i < repeat_; ++i) {
    const double milliseconds = time(enqueue) / count;
    if (i >= 0) times.push_back(milliseconds);
  }
  return spread_of(std::move(times));
}

}  // namespace penstock::cli
