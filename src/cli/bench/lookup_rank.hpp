#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/bench/engine_lookup.hpp"
#include "cli/bench/spread.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/event.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table.hpp"

namespace penstock::cli {

/// What `bench lookup` and `bench prefetch` measure.
struct LookupBenchOptions {
  std::string placement = "host_shared";
  std::string backing = "auto";
  std::string device = "cpu";
  double gib = 1;
  std::vector<std::int64_t> tokens{1, 8, 64, 1024, 8192};
  int ranks = 1;
  int repeat = 20;
  bool in_graph = false;
  int work = 12;  ///< bench prefetch: products before the rows are needed.
};

inline constexpr int kLookupColumns = 24;
inline constexpr int kLookupDim = 256;
inline constexpr double kLookupRowBytes = 264;

/// One rank of a benchmark: its table of made-up rows, and row ids that do not come twice within a
/// measurement. Every rank is a thread, on CUDA each with a GPU of its own.
class LookupRank {
 public:
  /// Collective: over `comm`.
  LookupRank(const LookupBenchOptions& options, Communicator& comm);

  Device device() const { return device_; }
  Communicator& comm() { return comm_; }
  const Table& table() const { return table_; }
  const Stream& stream() const { return stream_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  std::span<std::byte> out() const { return out_.as<std::byte>(); }

  /// Ids of `tokens` tokens, others with every call.
  RowIds ids(std::int64_t tokens);

  void read(std::int64_t tokens, RowFormat format, StreamRef stream);
  void read_as_engine(std::int64_t tokens, EngineGrid grid, StreamRef stream);

  /// Copies the rows' bytes one by one: what the CPU's memory allows.
  void copy_rows(std::int64_t tokens);

  /// Milliseconds of one of the `count` things that `enqueue` puts on the stream. All ranks begin
  /// together, and the slowest counts. `look` is called after each.
  Spread measure(const std::function<void()>& enqueue, int count,
                 const std::function<void()>& look = {});

  /// The largest of all ranks' values.
  double largest(double mine);

 private:
  Communicator& comm_;
  int repeat_;
  Device device_;
  std::int64_t max_tokens_;
  Table table_;
  Stream stream_;
  Buffer ids_;
  Buffer out_;
  std::int64_t turn_ = 0;
};

/// The exchange of engines that spread a table over ranks by columns: ids are gathered, every rank
/// reads its columns for all tokens, and the rows travel back through NCCL and are unpacked.
class ExchangedLookup {
 public:
  /// Collective: over the ranks.
  /// Errors:     Unsupported where NCCL cannot be had.
  ExchangedLookup(const LookupBenchOptions& options, LookupRank& rank);

  void read(std::int64_t tokens);

 private:
  LookupRank& rank_;
  std::unique_ptr<Communicator> nccl_;
  Table shard_;
  Buffer gathered_ids_;
  Buffer staged_;
  Buffer received_;
  Buffer numbers_;  ///< 0, 1, 2, ...: the received rows in their order.
};

}  // namespace penstock::cli
