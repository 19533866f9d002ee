#include "penstock/gate/weight_stream.hpp"

#include "core/build_config.hpp"
#include "gate/weight_stream_impl.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace detail {

void WeightStreamImpl::reserve_workspace(std::size_t bytes) {
  if (bytes <= workspace_.bytes()) return;
  workspace_.reset();  // first, so that both are never there together
  workspace_ = Buffer::allocate(device_, bytes);
}

namespace {

std::unique_ptr<WeightStreamImpl> make_impl(Communicator* comm, GateShape largest, Device device,
                                            WeightArrival arrival) {
  expects(largest.hidden_size >= 1 && largest.output_size >= 1,
          "WeightStream: a size of the largest gate is below 1");
  switch (device.kind) {
    case DeviceKind::Cpu: return make_weight_stream_cpu(comm, largest);
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) {
        return make_weight_stream_cuda(comm, largest, device, arrival);
      }
      throw Error(ErrorCode::Unsupported, "WeightStream: built without PENSTOCK_WITH_CUDA");
  }
  throw Error(ErrorCode::Internal, "WeightStream: not a DeviceKind");
}

}  // namespace
}  // namespace detail

WeightStream::WeightStream(Communicator* comm, GateShape largest, Device device,
                           WeightArrival arrival)
    : impl_(detail::make_impl(comm, largest, device, arrival)) {}

WeightStream::~WeightStream() = default;

std::size_t WeightStream::buffer_bytes() const {
  return impl_->buffer_bytes();
}

void WeightStream::join(StreamRef stream) {
  impl_->join(stream);
}

std::int64_t WeightStream::num_transfers() const {
  return impl_->num_transfers();
}

}  // namespace penstock
