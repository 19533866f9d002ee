#pragma once

#include <cstdint>
#include <functional>
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
  int work = 12;                    ///< bench prefetch: products before the rows are needed.
  std::int64_t work_tokens = 8192;  ///< Of each product.
};

inline constexpr int kReadsInGraph = 16;  ///< As many layers of a step.
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
  int repeat() const { return repeat_; }
  Communicator& comm() { return comm_; }
  const Table& table() const { return table_; }
  const Stream& stream() const { return stream_; }
  std::int64_t max_tokens() const { return max_tokens_; }
  std::span<std::byte> out() const { return out_.as<std::byte>(); }

  /// Ids of `tokens` tokens, others with every call. For a graph they lie where renew_ids() puts new
  /// ones.
  RowIds ids(std::int64_t tokens);

  /// Before a graph is launched again: other ids for its reads, in the order of the stream.
  void renew_ids();

  void read(std::int64_t tokens, RowFormat format, StreamRef stream);
  /// Without a workspace, even if read() goes through the table in order.
  void read_as_ids_come(std::int64_t tokens, RowFormat format, StreamRef stream);
  bool reads_in_order(std::int64_t tokens) const;
  void read_as_engine(std::int64_t tokens, EngineGrid grid, StreamRef stream);

  /// Copies the rows' bytes one by one: what the CPU's memory allows.
  void copy_rows(std::int64_t tokens);

  /// Milliseconds of what `enqueue` puts on the stream, after what `before` puts there. All ranks
  /// begin together, and the slowest counts.
  double time(const std::function<void()>& enqueue, const std::function<void()>& before = {});

  /// Of one of the `count` things that `enqueue` puts on the stream, over all repetitions.
  Spread measure(const std::function<void()>& enqueue, int count);

 private:
  void read(std::int64_t tokens, RowFormat format, StreamRef stream,
            std::span<std::byte> workspace);

  Communicator& comm_;
  int repeat_;
  Device device_;
  std::int64_t max_tokens_;
  Table table_;
  Stream stream_;
  Event begin_;
  Event end_;
  Buffer ids_;        // of kIdSets reads, for a graph of as many launches
  Buffer graph_ids_;  // of the reads of one launch
  Buffer out_;
  Buffer workspace_;
  std::int64_t turn_ = 0;
  std::int64_t launch_ = 0;
};

/// A table of made-up rows as `options` say, and this rank's shard of it.
Table open_bench_table(const LookupBenchOptions& options, Placement placement, TableShard shard,
                       Device device, Communicator* group);

}  // namespace penstock::cli
