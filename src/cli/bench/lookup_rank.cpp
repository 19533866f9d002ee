#include "cli/bench/lookup_rank.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "penstock/table/row_source.hpp"

namespace penstock::cli {
namespace {

constexpr int kIdSets = 24;
constexpr std::uint64_t kSeed = 1;

/// Never 0.
std::uint64_t next_random(std::uint64_t& state) {
  state ^= state << 13U;
  state ^= state >> 7U;
  state ^= state << 17U;
  return state;
}

std::vector<std::int32_t> random_ids(std::int64_t count, std::int64_t rows, int rank) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::uint64_t state = 0x9E3779B97F4A7C15;
  state += static_cast<std::uint64_t>(rank);
  for (auto& id : ids) {
    id = static_cast<std::int32_t>(next_random(state) % static_cast<std::uint64_t>(rows));
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

Table open_table(const LookupBenchOptions& options, Placement placement, TableShard shard,
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

Buffer filled(Device device, std::span<const std::int32_t> values) {
  Buffer buffer = Buffer::allocate(device, values.size_bytes());
  copy_bytes(buffer, std::as_bytes(values));
  return buffer;
}

/// Memory that ranks share or spread needs to know them all.
Communicator* group_for(Placement placement, Communicator& comm) {
  const bool is_common = placement == Placement::HostShared || placement == Placement::Peer;
  return is_common && comm.size() > 1 ? &comm : nullptr;
}

}  // namespace

LookupRank::LookupRank(const LookupBenchOptions& options, Communicator& comm)
    : comm_(comm),
      repeat_(options.repeat),
      device_(options.device == "cuda" ? Device::cuda(comm.rank()) : Device::cpu()),
      max_tokens_(*std::ranges::max_element(options.tokens)),
      table_(open_table(options, placement_of(options), {}, device_,
                        group_for(placement_of(options), comm))),
      stream_(Stream::create(device_)),
      ids_(filled(device_, random_ids(kIdSets * max_tokens_ * kLookupColumns,
                                      table_.spec().num_rows, comm.rank()))),
      out_(Buffer::zeros(device_, static_cast<std::size_t>(max_tokens_) * kLookupColumns *
                                      kLookupDim * sizeof(BF16))) {}

RowIds LookupRank::ids(std::int64_t tokens) {
  const std::int64_t set = turn_++ % kIdSets;
  return {.data = ids_.as<std::int32_t>().data() + set * max_tokens_ * kLookupColumns,
          .tokens = tokens,
          .columns = kLookupColumns,
          .token_stride = kLookupColumns};
}

void LookupRank::read(std::int64_t tokens, RowFormat format, StreamRef stream) {
  const std::int64_t bytes = tokens * kLookupColumns * staging_row_bytes(table_.view(), format);
  gather_rows(table_.view(), ids(tokens), format, out().first(static_cast<std::size_t>(bytes)),
              device_, stream);
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

Spread LookupRank::measure(const std::function<void()>& enqueue, int count,
                           const std::function<void()>& look) {
  std::vector<double> times;
  Event begin = Event::create(device_);
  Event end = Event::create(device_);
  constexpr int kWarmUp = 3;
  for (int i = -kWarmUp; i < repeat_; ++i) {
    stream_.synchronize();
    comm_.barrier();
    begin.record(stream_.ref());
    enqueue();
    end.record(stream_.ref());
    const std::chrono::duration<double, std::milli> time = end.since(begin);
    const double slowest = largest(time.count() / count);
    if (i < 0) continue;
    times.push_back(slowest);
    if (look) look();
  }
  return spread_of(std::move(times));
}

double LookupRank::largest(double mine) {
  if (comm_.size() == 1) return mine;
  double most = mine;
  for (const auto& other : comm_.all_gather_object(std::as_bytes(std::span(&mine, 1)))) {
    double value = 0;
    std::memcpy(&value, other.data(), sizeof(value));
    most = std::max(most, value);
  }
  return most;
}

ExchangedLookup::ExchangedLookup(const LookupBenchOptions& options, LookupRank& rank)
    : rank_(rank),
      nccl_(make_nccl_communicator(rank.comm(), rank.device(), {.compares_arguments = false})),
      shard_(open_table(options, Placement::Device, {rank.comm().rank(), rank.comm().size()},
                        rank.device(), nullptr)) {
  const std::int64_t tokens = rank.max_tokens() * rank.comm().size();
  const std::int64_t rows = tokens * shard_.view().local_columns;
  const auto bytes = [](std::int64_t count, std::int64_t each) {
    return static_cast<std::size_t>(count * each);
  };
  gathered_ids_ = Buffer::zeros(rank.device(), bytes(tokens * kLookupColumns, 4));
  staged_ = Buffer::zeros(rank.device(), bytes(rows, row_record_bytes(kLookupDim)));
  received_ = Buffer::zeros(rank.device(), staged_.bytes());
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(rows));
  std::iota(numbers.begin(), numbers.end(), 0);
  numbers_ = filled(rank.device(), numbers);
}

void ExchangedLookup::read(std::int64_t tokens) {
  const StreamRef stream = rank_.stream().ref();
  const TableView& view = shard_.view();
  const std::int64_t all_tokens = tokens * rank_.comm().size();
  const RowIds mine = rank_.ids(tokens);
  const auto* begin = reinterpret_cast<const std::byte*>(mine.data);
  const auto id_bytes = static_cast<std::size_t>(tokens * kLookupColumns * 4);
  nccl_->all_gather(
      {begin, id_bytes},
      gathered_ids_.as<std::byte>().first(id_bytes * static_cast<std::size_t>(rank_.comm().size())),
      stream);
  const std::int64_t record = row_record_bytes(kLookupDim);
  const auto block = static_cast<std::size_t>(tokens * view.local_columns * record);
  const std::size_t all_bytes = block * static_cast<std::size_t>(rank_.comm().size());
  gather_rows(view,
              {.data = gathered_ids_.as<std::int32_t>().data(),
               .tokens = all_tokens,
               .columns = kLookupColumns,
               .token_stride = kLookupColumns},
              RowFormat::Packed, staged_.as<std::byte>().first(all_bytes), rank_.device(), stream);
  nccl_->all_to_all(staged_.as<const std::byte>().first(all_bytes),
                    received_.as<std::byte>().first(all_bytes), block, stream);
  TableView received = view;
  received.values[0] = received_.data();
  received.scales[0] = received_.data() + kLookupDim;
  received.row_begin = 0;
  received.rows_per_part = received.row_end = received.num_rows = all_tokens * view.local_columns;
  received.column_begin = 0;
  received.column_end = view.local_columns;
  gather_rows(received,
              {.data = numbers_.as<std::int32_t>().data(),
               .tokens = all_tokens,
               .columns = view.local_columns,
               .token_stride = view.local_columns},
              RowFormat::Bf16,
              rank_.out().first(static_cast<std::size_t>(all_tokens * view.local_columns) *
                                kLookupDim * sizeof(BF16)),
              rank_.device(), stream);
}

}  // namespace penstock::cli
