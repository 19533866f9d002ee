#include "cli/bench/exchanged_lookup.hpp"

#include <fmt/core.h>

#include <numeric>
#include <span>
#include <vector>

#include "cli/bench/engine_lookup.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

constexpr std::int64_t kBf16RowBytes = kLookupDim * std::int64_t{sizeof(BF16)};

std::size_t to_bytes(std::int64_t count, std::int64_t each) {
  return static_cast<std::size_t>(count * each);
}

}  // namespace

ExchangedLookup::ExchangedLookup(const LookupBenchOptions& options, LookupRank& rank)
    : rank_(rank),
      nccl_(make_nccl_communicator(rank.comm(), rank.device(), {.compares_arguments = false})),
      shard_(open_bench_table(options, Placement::Device, {rank.comm().rank(), rank.comm().size()},
                              rank.device(), nullptr)) {
  if (kLookupColumns % ranks() != 0) {  // padded columns would have no place in what a rank needs
    throw Error(ErrorCode::Unsupported,
                fmt::format("bench lookup: {} columns exchanged over {} ranks, needed: a divisor",
                            kLookupColumns, ranks()));
  }
  const std::int64_t tokens = rank.max_tokens() * ranks();
  const std::int64_t rows = tokens * shard_.view().local_columns;
  const Device device = rank.device();
  gathered_ids_ = Buffer::zeros(device, to_bytes(tokens * kLookupColumns, 4));
  staged_ = Buffer::zeros(device, to_bytes(rows, kBf16RowBytes));
  received_ = Buffer::zeros(device, to_bytes(rows * ranks(), kBf16RowBytes));
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(rows));
  std::iota(numbers.begin(), numbers.end(), 0);
  numbers_ = Buffer::copy_of(std::as_bytes(std::span(numbers)), device);
}

void ExchangedLookup::read(std::int64_t tokens, Exchange exchange) {
  gather_ids(tokens);
  switch (exchange) {
    case Exchange::GatherBf16: return gather_bf16(tokens);
    case Exchange::SendRecords: return send_records(tokens);
  }
}

void ExchangedLookup::gather_ids(std::int64_t tokens) {
  const RowIds mine = rank_.ids(tokens);
  const std::size_t bytes = to_bytes(tokens * kLookupColumns, 4);
  const std::size_t all = bytes * static_cast<std::size_t>(ranks());
  nccl_->all_gather({reinterpret_cast<const std::byte*>(mine.data), bytes},
                    gathered_ids_.as<std::byte>().first(all), rank_.stream().ref());
}

void ExchangedLookup::read_shard(std::int64_t tokens, RowFormat format, std::size_t bytes) {
  gather_rows(shard_.view(),
              {.data = gathered_ids_.as<std::int32_t>().data(),
               .tokens = tokens * ranks(),
               .columns = kLookupColumns,
               .token_stride = kLookupColumns},
              format, staged_.as<std::byte>().first(bytes), rank_.device(), rank_.stream().ref());
}

void ExchangedLookup::gather_bf16(std::int64_t tokens) {
  const StreamRef stream = rank_.stream().ref();
  const std::int64_t token_bytes = shard_.view().local_columns * kBf16RowBytes;
  const std::size_t bytes = to_bytes(tokens * ranks(), token_bytes);
  read_shard(tokens, RowFormat::Bf16, bytes);
  nccl_->all_gather(staged_.as<const std::byte>().first(bytes),
                    received_.as<std::byte>().first(bytes * static_cast<std::size_t>(ranks())),
                    stream);
  // Of each rank's columns, the tokens that are this rank's own.
  for (std::int64_t source = 0; source < ranks(); ++source) {
    const std::int64_t first = (source * ranks() + rank_.comm().rank()) * tokens;
    copy_strided(rank_.out().data() + source * token_bytes, ranks() * token_bytes,
                 received_.data() + first * token_bytes, token_bytes, token_bytes, tokens, stream);
  }
}

void ExchangedLookup::send_records(std::int64_t tokens) {
  const std::size_t block =
      to_bytes(tokens * shard_.view().local_columns, row_record_bytes(kLookupDim));
  const std::size_t bytes = block * static_cast<std::size_t>(ranks());
  read_shard(tokens, RowFormat::Packed, bytes);
  nccl_->all_to_all(staged_.as<const std::byte>().first(bytes),
                    received_.as<std::byte>().first(bytes), block, rank_.stream().ref());
  unpack(tokens);
}

/// The records lie by source; the reader turns them into bf16 as if they were a table.
void ExchangedLookup::unpack(std::int64_t tokens) {
  TableView received = shard_.view();
  const std::int64_t columns = received.local_columns;
  received.values[0] = received_.data();
  received.scales[0] = received_.data() + kLookupDim;
  received.row_begin = 0;
  received.rows_per_part = received.row_end = received.num_rows = tokens * ranks() * columns;
  received.column_begin = 0;
  received.column_end = received.local_columns;
  gather_rows(received,
              {.data = numbers_.as<std::int32_t>().data(),
               .tokens = tokens * ranks(),
               .columns = received.local_columns,
               .token_stride = columns},
              RowFormat::Bf16,
              rank_.out().first(to_bytes(tokens * ranks() * columns, kBf16RowBytes)),
              rank_.device(), rank_.stream().ref());
}

}  // namespace penstock::cli
