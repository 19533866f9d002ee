#pragma once

#include <cstdint>

#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/gate/strategy.hpp"

namespace penstock::detail {

/// One use of an IdenticalGather.
struct IdenticalGatherCall {
  GateShape shape;
  std::int64_t tokens = 0;     ///< At most max_tokens().
  const BF16* z = nullptr;     ///< [tokens, this rank's rows]
  const BF16* attn = nullptr;  ///< [tokens, G]
  BF16* out = nullptr;         ///< [tokens, G]; may be attn.
};

/// Gates this rank's columns of identical rows and gives them to all ranks, through memory that the
/// ranks can reach of each other, without a communicator.
class IdenticalGather {
 public:
  IdenticalGather() = default;
  virtual ~IdenticalGather() = default;
  IdenticalGather(const IdenticalGather&) = delete;
  IdenticalGather& operator=(const IdenticalGather&) = delete;

  /// Whether a gate of this shape can use it. Equal on all ranks.
  virtual bool fits(const GateShape& shape) const = 0;
  virtual std::int64_t max_tokens() const = 0;

  /// Collective: every rank, in the same order, with the same number of tokens.
  /// Async:      ordered on `stream`; waits on the device for the other ranks. Legal in capture.
  /// Errors:     PeerFailed if a rank did not come to an earlier call.
  virtual void run(const IdenticalGatherCall& call, StreamRef stream) = 0;
};

}  // namespace penstock::detail
