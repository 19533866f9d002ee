#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cli/bench/lookup_rank.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/table/table.hpp"

// How a table is read that is spread over ranks by columns: every rank needs rows of all ranks, for
// tokens of its own. Both ways begin alike: ids are gathered through NCCL, and every rank reads its
// columns for the tokens of all.
namespace penstock::cli {

/// How the rows get back to the rank whose tokens they are.
enum class Exchange {
  /// What inference engines do: rows are dequantised where they lie, all ranks gather those of all
  /// tokens, and each keeps its own.
  GatherBf16,
  /// The least that can travel: records, each to the rank that needs it, unpacked there.
  SendRecords
};

/// One rank of it.
class ExchangedLookup {
 public:
  /// Collective: over the ranks.
  /// Errors:     Unsupported where NCCL cannot be had, and for ranks that do not divide the columns.
  ExchangedLookup(const LookupBenchOptions& options, LookupRank& rank);

  void read(std::int64_t tokens, Exchange exchange);

 private:
  void gather_ids(std::int64_t tokens);
  void read_shard(std::int64_t tokens, RowFormat format, std::size_t bytes);
  void gather_bf16(std::int64_t tokens);
  void send_records(std::int64_t tokens);
  void unpack(std::int64_t tokens);

  std::int64_t ranks() const { return rank_.comm().size(); }

  LookupRank& rank_;
  std::unique_ptr<Communicator> nccl_;
  Table shard_;
  Buffer gathered_ids_;
  Buffer staged_;
  Buffer received_;
  Buffer numbers_;  ///< 0, 1, 2, ...: the received records in their order.
};

}  // namespace penstock::cli
