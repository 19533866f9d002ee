#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/gate/planner.hpp"
#include "penstock/gate/strategy.hpp"
#include "penstock/gate/weight_stream.hpp"

namespace penstock {

/// Where a gate rounds to bf16.
enum class GateRounding {
  Once,       ///< The product attn_out * sigmoid(x w^T) only (CUDA: the projection as well).
  ThreeTimes  ///< Projection, sigmoid and product, as three separate operations do.
};

/// What is chosen when a gate is made. Equal on all ranks, but for `workspace`.
struct GateOptions {
  GateStrategy strategy = GateStrategy::Auto;
  GateRounding rounding = GateRounding::Once;
  DType k_shard_sums = DType::BF16;        ///< Partial sums on the wire: BF16 or F32.
  DType n_shard_projections = DType::F32;  ///< F32 keeps the bits of `replicated`; BF16 halves.
  std::optional<std::size_t> max_temp_bytes = {};      ///< Bounds workspace and weight stream.
  std::optional<std::size_t> max_resident_bytes = {};  ///< Auto keeps the whole weight up to this.
  Device device;
  std::optional<GateRates> rates = {};  ///< For the planner; typical ones if absent.
  bool overlaps_blocks = true;  ///< KShard on CUDA multiplies a block while others are exchanged.
  double window_seconds = 0;    ///< Work before each gate under which its weight can travel.
  bool check_calls = false;     ///< Compare calls over all ranks before anything is exchanged.
  std::span<std::byte> workspace;  ///< Instead of own memory; on `device`, aligned to 256 bytes.
  std::shared_ptr<WeightStream> weight_stream;  ///< Shared by layers; own one if null.
};

/// One use of a gate.
struct GateCall {
  std::int64_t tokens = 0;         ///< T: rows of this rank; may be 0 and may differ.
  std::int64_t attn_width = 0;     ///< Columns of attn_out: G, or with headwise G * v_head_dim.
  std::span<const BF16> x;         ///< [T, H]
  std::span<const BF16> attn_out;  ///< [T, attn_width]
  std::span<BF16> out;             ///< [T, attn_width]; may be attn_out itself.
  /// T of every rank; empty: the ranks ask each other, which capture does not allow.
  std::span<const std::int64_t> token_counts;
  /// Rows of this rank that every rank has, with equal contents. As many on each rank.
  std::optional<IndexRange> identical_rows = {};
};

/// The gate projection out = attn_out * sigmoid(x w^T), with the weight spread over a group.
///
/// Collective: construction is; forward is, but for Replicated, and for WeightGather where rows are
///             pulled (then a rank without tokens need not call, and blocks nobody).
/// Bits:       on the CPU Replicated, NShard (F32), WeightGather and IdenticalRows agree bit for
///             bit, for any number of ranks and any cut of the tokens. KShard does not: see
///             `docs/design/gate.md` for its bound.
/// Threads:    one call at a time; gates that share a stream belong to one thread.
class GateLinear {
 public:
  /// Keeps this rank's part of `weight`, copied to `options.device`.
  ///
  /// Shapes: weight [G, H], or this rank's rows or columns of it, as `part` says; host memory or
  ///         memory of `options.device`.
  /// Errors: on every rank alike: InvalidArgument for sizes that do not fit, options or shapes that
  ///         differ between ranks, a part that the strategy cannot use, a max_temp_bytes below the
  ///         least that works (the message has it); OutOfMemory. The message names the rank.
  GateLinear(const GateShape& shape, std::span<const BF16> weight, WeightPart part,
             Communicator* comm = nullptr, const GateOptions& options = {});
  ~GateLinear();
  GateLinear(GateLinear&&) noexcept;
  GateLinear& operator=(GateLinear&&) noexcept;

  const GateShape& shape() const;

  /// What the options asked for; Auto becomes Replicated when the whole weight stays on each rank.
  GateStrategy strategy() const;

  /// The part of the weight that this rank keeps, and its bytes.
  WeightPart resident_part() const;
  std::size_t resident_bytes() const;

  /// Rows of the weight that this rank owns (with resident columns: its columns).
  IndexRange owned() const;

  /// Tokens of a rank that k_shard, n_shard and identical_rows take at once.
  std::int64_t block_tokens() const;

  /// Workspace that a call of up to `max_tokens` tokens a rank needs, exactly. Auto: the largest of
  /// the strategies that it may pick. The weight stream's buffer is not part of it.
  ///
  /// Range: grows with max_tokens up to block_tokens(), where KShard with overlap takes the buffers of
  ///        a second block, then stays.
  std::size_t workspace_bytes(std::int64_t max_tokens, GateStrategy strategy) const;

  /// Workspace that calls have touched so far, at most.
  std::size_t peak_workspace_bytes() const;

  /// What the planner would do with such a call.
  GatePlan plan(std::int64_t max_tokens, std::int64_t identical_tokens = 0) const;

  /// Starts this layer's weight on its way, if it travels and is not under way. Optional: forward
  /// starts what is missing, and then the next layer's of the same weight stream.
  ///
  /// Async: never blocks `stream` nor the host.
  void prefetch(StreamRef stream = {});

  /// Errors: InvalidArgument for sizes that do not fit or differ from token_counts, before anything
  ///         is written; PeerFailed.
  /// Async:  on CUDA ordered on `stream`; legal in capture with token_counts given.
  /// Cost:   no memory is allocated for tensors.
  void forward(const GateCall& call, StreamRef stream = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Makes a gate of layer `layer_id` of a model directory; reads this rank's slice only (of a weight
/// that begins at an odd byte of its file: all of it).
///
/// Errors: NotFound if the model has no such gate; Unsupported if its weight is not bf16;
///         CorruptFile if its shape is not the one that config.json gives.
GateLinear open_gate_linear(const std::filesystem::path& model_dir, int layer_id,
                            Communicator* comm = nullptr, const GateOptions& options = {});

/// The group over which one gate is spread: `group_size` neighbouring ranks of `comm`, each such
/// group holding one complete weight. Nothing: all ranks of `comm`.
///
/// Errors: InvalidArgument unless 1 <= group_size and it divides comm.size().
std::unique_ptr<Communicator> split_gate_group(Communicator& comm, std::optional<int> group_size);

}  // namespace penstock
