// Weights of other ranks are pulled by copy engines into one of two buffers, one layer ahead: a
// weight does not depend on activations, so its way can start while the layer before computes.
//
// Whole: the buffer gets this rank's rows too, by a copy within the device, and the layer is one
// product over contiguous rows. Pieces: this rank's rows are multiplied where they are, before the
// others have arrived. Pieces copy less and can start sooner; Whole runs one large product instead
// of two or three, with the very sizes and so the very algorithm of a replicated layer.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/unique_handle.hpp"
#include "gate/one_shot_cuda.hpp"
#include "gate/weight_stream_impl.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

constexpr std::size_t kSlots = 2;

/// A side stream whose copies go before other work when both can run.
cuda::UniqueStream make_copy_stream() {
  int lowest = 0;
  int highest = 0;
  PENSTOCK_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  PENSTOCK_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return cuda::UniqueStream(stream);
}

/// Identity of the capture that `stream` takes part in; 0 outside.
unsigned long long capture_of(StreamRef stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  PENSTOCK_CUDA_CHECK(cudaStreamGetCaptureInfo(stream.get(), &status, &id));
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

/// One buffer for one weight on its way.
struct Slot {
  Buffer weight;
  cuda::UniqueEvent ready;      ///< All rows have arrived.
  cuda::UniqueEvent own_ready;  ///< This rank's rows have been copied.
  cuda::UniqueEvent used;       ///< The products that read it are done.
  bool has_used = false;        ///< `used` was recorded outside of captures.
  int layer = -1;               ///< Whose weight is on its way and not yet used.
  unsigned long long capture = 0;
};

class CudaWeightStream final : public WeightStreamImpl {
 public:
  CudaWeightStream(Communicator* comm, GateShape largest, Device device, WeightArrival arrival)
      : WeightStreamImpl(device),
        comm_(comm),
        largest_(largest),
        arrival_(arrival) {
    const cuda::DeviceGuard guard(device);
    peer_stream_ = make_copy_stream();
    own_stream_ = make_copy_stream();
    fork_ = cuda::make_event();
    for (Slot& slot : slots_) {
      slot.ready = cuda::make_event();
      slot.own_ready = cuda::make_event();
      slot.used = cuda::make_event();
    }
  }

  void add(StreamedLayer& layer) override {
    const std::size_t bytes = bytes_with(layer) / kSlots;
    for (Slot& slot : slots_) {
      if (slot.weight.bytes() < bytes) slot.weight = Buffer::allocate(device(), bytes);
    }
    layer.index = static_cast<int>(layers_.size());
    layers_.push_back(layer);
  }

  void remove(const StreamedLayer& layer) noexcept override {
    // Copies out of peers' memory may still be under way.
    static_cast<void>(cudaStreamSynchronize(peer_stream_.get()));
    static_cast<void>(cudaStreamSynchronize(own_stream_.get()));
    layers_[static_cast<std::size_t>(layer.index)].rows = nullptr;
    for (Slot& slot : slots_) {
      if (slot.layer == layer.index) slot.layer = -1;
    }
  }

  std::size_t bytes_with(const StreamedLayer& layer) const override {
    const auto bytes = [](const GateShape& shape) {
      return static_cast<std::size_t>(shape.output_size * shape.hidden_size) * sizeof(BF16);
    };
    return kSlots * std::max({slots_[0].weight.bytes(), bytes(layer.shape), bytes(largest_)});
  }

  void start(const StreamedLayer& layer, StreamRef stream) override {
    const cuda::DeviceGuard guard(device());
    const unsigned long long capture = capture_of(stream);
    if (find(layer, capture) == nullptr) pull(layer, next_slot(capture), stream, capture);
  }

  void consume(const StreamedLayer& layer, const std::function<void(const ArrivedRows&)>& use,
               StreamRef stream) override {
    const cuda::DeviceGuard guard(device());
    const unsigned long long capture = capture_of(stream);
    Slot* slot = find(layer, capture);
    if (slot == nullptr) {
      slot = next_slot(capture);
      pull(layer, slot, stream, capture);
    }
    slot->layer = -1;  // before the next layer looks for a slot
    const StreamedLayer* next = layer_after(layer, capture);
    if (next != nullptr && find(*next, capture) == nullptr) {
      pull(*next, other_than(slot), stream, capture);
    }
    use_pieces(layer, *slot, use, stream);
    PENSTOCK_CUDA_CHECK(cudaEventRecord(slot->used.get(), stream.get()));
    slot->has_used = capture == 0;
  }

  void join(StreamRef stream) override {
    const cuda::DeviceGuard guard(device());
    const unsigned long long capture = capture_of(stream);
    for (const Slot& slot : slots_) {
      if (slot.layer >= 0 && slot.capture == capture) {
        PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(stream.get(), slot.ready.get(), 0));
      }
    }
  }

  std::size_t buffer_bytes() const override {
    std::size_t bytes = 0;
    for (const Slot& slot : slots_) bytes += slot.weight.bytes();
    return bytes;
  }

  IdenticalGather* identical_gather(Communicator& comm) override {
    if (!has_gather_) {
      gather_ = make_one_shot_gather(comm, largest_, device());
      has_gather_ = true;
    }
    return gather_.get();
  }

 private:
  int ranks() const { return comm_ == nullptr ? 1 : comm_->size(); }
  int rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }

  /// The slot that holds the layer's weight or will, as far as this capture (or the stream's work
  /// outside of captures) can know.
  Slot* find(const StreamedLayer& layer, unsigned long long capture) {
    // A replay of a captured graph overwrites the buffers behind our back: once there is a graph,
    // nothing that was started before a call is trusted outside of captures.
    if (capture == 0 && was_captured_) return nullptr;
    for (Slot& slot : slots_) {
      if (slot.layer == layer.index && slot.capture == capture) return &slot;
    }
    return nullptr;
  }

  /// The slot to fill next: one whose weight has been used, else the older one.
  Slot* next_slot(unsigned long long capture) {
    was_captured_ = was_captured_ || capture != 0;
    for (std::size_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots_[(newest_ + 1 + i) % kSlots];
      if (slot.layer < 0) return &slot;
    }
    return &slots_[(newest_ + 1) % kSlots];
  }

  Slot* other_than(const Slot* slot) { return slot == slots_.data() ? &slots_[1] : slots_.data(); }

  const StreamedLayer* layer_after(const StreamedLayer& layer, unsigned long long capture) const {
    if (capture == 0 && was_captured_) return nullptr;
    const std::size_t count = layers_.size();
    for (std::size_t i = 1; i < count; ++i) {
      const std::size_t at = static_cast<std::size_t>(layer.index) + i;
      // A capture that ends with this layer could not join a copy for the first one.
      if (capture != 0 && at >= count) return nullptr;
      if (layers_[at % count].rows != nullptr) return &layers_[at % count];
    }
    return nullptr;
  }

  void pull(const StreamedLayer& layer, Slot* slot, StreamRef stream, unsigned long long capture) {
    // Outside of captures the copy waits for the buffer alone, so that it can run ahead of `stream`;
    // in a capture it must fork from it.
    const bool must_fork = capture != 0 || was_captured_;
    if (must_fork) {
      PENSTOCK_CUDA_CHECK(cudaEventRecord(fork_.get(), stream.get()));
      wait_on_copies(fork_);
    } else if (slot->has_used) {
      wait_on_copies(slot->used);
    }
    const auto row_bytes = static_cast<std::size_t>(layer.shape.hidden_size) * sizeof(BF16);
    const auto copy = [&](int from, const BF16* data, cudaStream_t side) {
      const IndexRange rows = even_share(layer.shape.output_size, ranks(), from);
      PENSTOCK_CUDA_CHECK(cudaMemcpyAsync(
          slot->weight.data() + static_cast<std::size_t>(rows.begin) * row_bytes, data,
          static_cast<std::size_t>(rows.size()) * row_bytes, cudaMemcpyDeviceToDevice, side));
    };
    if (arrival_ == WeightArrival::Whole) {
      copy(rank(), layer.rows->own().data(), own_stream_.get());
      PENSTOCK_CUDA_CHECK(cudaEventRecord(slot->own_ready.get(), own_stream_.get()));
    }
    // Ranks start with different peers, so that no peer's link serves all of them at once.
    for (int step = 1; step < ranks(); ++step) {
      const int from = (rank() + step) % ranks();
      copy(from, layer.rows->of(from), peer_stream_.get());
    }
    if (arrival_ == WeightArrival::Whole) {
      PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(peer_stream_.get(), slot->own_ready.get(), 0));
    }
    PENSTOCK_CUDA_CHECK(cudaEventRecord(slot->ready.get(), peer_stream_.get()));
    slot->layer = layer.index;
    slot->capture = capture;
    newest_ = static_cast<std::size_t>(slot - slots_.data());
    count_transfer();
  }

  void wait_on_copies(const cuda::UniqueEvent& event) {
    PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(peer_stream_.get(), event.get(), 0));
    if (arrival_ == WeightArrival::Whole) {
      PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(own_stream_.get(), event.get(), 0));
    }
  }

  void use_pieces(const StreamedLayer& layer, const Slot& slot,
                  const std::function<void(const ArrivedRows&)>& use, StreamRef stream) const {
    const std::int64_t hidden = layer.shape.hidden_size;
    const IndexRange all{0, layer.shape.output_size};
    const BF16* data = slot.weight.as<BF16>().data();
    const IndexRange own = even_share(layer.shape.output_size, ranks(), rank());
    const bool is_whole = arrival_ == WeightArrival::Whole;
    if (!is_whole && own.size() > 0) use({own, layer.rows->own().data()});
    PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(stream.get(), slot.ready.get(), 0));
    if (is_whole) {
      use({all, data});
      return;
    }
    for (const IndexRange& rest : {IndexRange{0, own.begin}, IndexRange{own.end, all.end}}) {
      if (rest.size() > 0) use({rest, data + rest.begin * hidden});
    }
  }

  Communicator* comm_;
  GateShape largest_;
  WeightArrival arrival_;
  cuda::UniqueStream peer_stream_;
  cuda::UniqueStream own_stream_;
  cuda::UniqueEvent fork_;
  std::array<Slot, kSlots> slots_;
  std::size_t newest_ = kSlots - 1;
  std::vector<StreamedLayer> layers_;
  bool was_captured_ = false;
  std::unique_ptr<IdenticalGather> gather_;
  bool has_gather_ = false;
};

}  // namespace

std::unique_ptr<WeightStreamImpl> make_weight_stream_cuda(Communicator* comm, GateShape largest,
                                                          Device device, WeightArrival arrival) {
  return std::make_unique<CudaWeightStream>(comm, largest, device, arrival);
}

}  // namespace penstock::detail
