#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "gate/identical_gather.hpp"
#include "gate/peer_rows.hpp"
#include "gate/side_stream.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/gate/strategy.hpp"
#include "penstock/gate/weight_stream.hpp"

namespace penstock::detail {

/// A layer of a weight stream.
struct StreamedLayer {
  GateShape shape;
  const PeerRows* rows = nullptr;
  int index = -1;  ///< Given by add().
};

/// Consecutive rows of a layer's weight, ready to be multiplied.
struct ArrivedRows {
  IndexRange rows;
  const BF16* data = nullptr;
};

/// What a WeightStream is made of; one class for each way in which weights travel.
class WeightStreamImpl {
 public:
  explicit WeightStreamImpl(Device device) : device_(device) {}
  virtual ~WeightStreamImpl() = default;
  WeightStreamImpl(const WeightStreamImpl&) = delete;
  WeightStreamImpl& operator=(const WeightStreamImpl&) = delete;

  /// Makes room for a layer whose weight may travel. Layers are used in the order of their making.
  virtual void add(StreamedLayer& layer) = 0;
  virtual void remove(const StreamedLayer& layer) noexcept = 0;

  /// Bytes that add() of such a layer would leave the stream with.
  virtual std::size_t bytes_with(const StreamedLayer& layer) const = 0;

  virtual void start(const StreamedLayer& layer, StreamRef stream) = 0;

  /// Calls `use` for pieces that cover the layer's weight, in order of arrival.
  virtual void consume(const StreamedLayer& layer,
                       const std::function<void(const ArrivedRows&)>& use, StreamRef stream) = 0;

  /// Makes `stream` wait for weights that were started and not used.
  virtual void join(StreamRef /*stream*/) {}

  /// The group's gather of identical rows; null where there is none. Made by the first call.
  ///
  /// Collective: over `comm`.
  virtual IdenticalGather* identical_gather(Communicator& /*comm*/) { return nullptr; }

  /// The stream on which the layers' products run beside exchanges; null where there is none. Made
  /// by the first call.
  virtual SideStream* side_stream() { return nullptr; }

  virtual std::size_t buffer_bytes() const = 0;
  std::int64_t num_transfers() const { return num_transfers_; }

  /// Scratch memory of whichever layer is running. Grows here; fetched anew by every call.
  void reserve_workspace(std::size_t bytes);
  std::span<std::byte> workspace() const { return workspace_.as<std::byte>(); }

  Device device() const { return device_; }

 protected:
  void count_transfer() { ++num_transfers_; }

 private:
  Device device_;
  Buffer workspace_;
  std::int64_t num_transfers_ = 0;
};

std::unique_ptr<WeightStreamImpl> make_weight_stream_cpu(Communicator* comm, GateShape largest);

/// In a build with CUDA.
std::unique_ptr<WeightStreamImpl> make_weight_stream_cuda(Communicator* comm, GateShape largest,
                                                          Device device, WeightArrival arrival);

}  // namespace penstock::detail
