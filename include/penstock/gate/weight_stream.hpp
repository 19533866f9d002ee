#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/gate/strategy.hpp"

namespace penstock {

namespace detail {
class WeightStreamImpl;
}

/// How pulled weights reach a layer's product, on CUDA.
enum class WeightArrival {
  Whole,  ///< A layer is one product, once all rows are there.
  Pieces  ///< This rank's rows are multiplied first, before the others have arrived.
};

/// The memory through which the weights of many layers travel, one after the other. All layers of
/// a model share one, so that its size does not grow with their number.
///
/// Where a rank's products can read the other ranks' rows in place (ranks of one process on the CPU)
/// nothing travels and buffer_bytes() is 0. On CUDA, rows are pulled by a copy engine on a stream of
/// their own, one layer ahead. Elsewhere they are gathered by a collective when they are needed.
///
/// Threads: one rank's calls, one at a time; the layers that share it belong to one rank.
class WeightStream {
 public:
  /// `largest` is the biggest gate that will use it; on CUDA a larger one is refused when it is made.
  /// `comm` null: a group of one.
  ///
  /// Errors: InvalidArgument for sizes below 1; OutOfMemory, when the first layer needs memory.
  WeightStream(Communicator* comm, GateShape largest, Device device = {},
               WeightArrival arrival = WeightArrival::Whole);
  ~WeightStream();
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;

  /// Memory taken so far. Does not change once the first layer has been made.
  std::size_t buffer_bytes() const;

  /// Weights that have travelled since the start; 0 where they are read in place.
  std::int64_t num_transfers() const;

  /// Makes `stream` wait for weights that were started and not used. Call it before a capture ends
  /// in which prefetch() was used without forward().
  void join(StreamRef stream);

  /// For the layers: what is behind it.
  detail::WeightStreamImpl& impl() const { return *impl_; }

 private:
  std::unique_ptr<detail::WeightStreamImpl> impl_;
};

}  // namespace penstock
