// Weights of other ranks are pulled by copy engines into one of two sets of pages, one layer ahead: a
// weight does not depend on activations, so its way can start while the layer before computes.
//
// A layer has addresses of its own for either set: behind them lie the pages of this rank's rows,
// which never move, between the pages of the set. So the whole weight is one array, though only the
// other ranks' rows were copied and only they take memory twice.
//
// Where a rank's rows do not begin and end with a page, its first and last page also hold a few rows
// of its neighbours. These are pulled with the others, and always with the same contents.
//
// Whole: a layer is one product over all rows, with the very sizes and so the very algorithm of a
// replicated layer. Pieces: this rank's rows are multiplied before the others have arrived.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/round_up.hpp"
#include "cuda/address_range.hpp"
#include "cuda/capture.hpp"
#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/unique_handle.hpp"
#include "gate/one_shot_cuda.hpp"
#include "gate/peer_rows_cuda.hpp"
#include "gate/weight_stream_impl.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

constexpr std::size_t kSlots = 2;

/// The bytes of a weight: all, and this rank's rows with the rest of their pages.
struct Extent {
  std::size_t bytes = 0;  ///< Whole pages.
  std::size_t own_begin = 0;
  std::size_t own_end = 0;

  std::size_t before() const { return own_begin; }
  std::size_t after() const { return bytes - own_end; }
};

Extent extent_of(const GateShape& shape, int rank, int ranks, std::size_t page) {
  const auto row_bytes = static_cast<std::size_t>(shape.hidden_size) * sizeof(BF16);
  const IndexRange own = even_share(shape.output_size, ranks, rank);
  const auto up = [page](std::size_t bytes) { return round_up(bytes, page); };
  Extent extent;
  extent.bytes = up(static_cast<std::size_t>(shape.output_size) * row_bytes);
  extent.own_begin = static_cast<std::size_t>(own.begin) * row_bytes / page * page;
  // A rank without rows has a page all the same: there is an address to share.
  extent.own_end = std::max(up(static_cast<std::size_t>(own.end) * row_bytes),
                            std::min(extent.own_begin + page, extent.bytes));
  return extent;
}

/// Pages for one weight on its way, without those of this rank's rows.
struct Slot {
  cuda::VirtualMemory before;
  cuda::VirtualMemory after;
  cuda::UniqueEvent ready;  ///< All rows have arrived.
  cuda::UniqueEvent used;   ///< The products that read it are done.
  bool has_used = false;    ///< `used` was recorded outside of captures.
  int layer = -1;           ///< Whose weight is on its way and not yet used.
  cuda::CaptureId capture = 0;
};

/// A layer, and its weight as one array in either slot.
struct SlottedLayer {
  StreamedLayer layer;
  std::array<cuda::AddressRange, kSlots> weight;
};

class CudaWeightStream final : public WeightStreamImpl {
 public:
  CudaWeightStream(Communicator* comm, GateShape largest, Device device, WeightArrival arrival)
      : WeightStreamImpl(device),
        comm_(comm),
        largest_(largest),
        arrival_(arrival) {
    const cuda::DeviceGuard guard(device);
    // Copies go before other work when both can run.
    copy_stream_ = cuda::make_stream(cuda::StreamPriority::Highest);
    fork_ = cuda::make_event();
    for (Slot& slot : slots_) {
      slot.ready = cuda::make_event();
      slot.used = cuda::make_event();
    }
  }

  void add(StreamedLayer& layer) override {
    take_pages(layer.shape);
    const auto& rows = static_cast<const CudaRows&>(*layer.rows);  // on CUDA all rows are
    const Extent extent = extent_of(layer.shape);
    SlottedLayer added;
    for (std::size_t i = 0; i < kSlots; ++i) {
      added.weight[i] = cuda::AddressRange::reserve(device(), extent.bytes);
      added.weight[i].map(0, slots_[i].before, extent.before());
      added.weight[i].map(extent.own_begin, rows.memory(), extent.own_end - extent.own_begin);
      added.weight[i].map(extent.own_end, slots_[i].after, extent.after());
    }
    layer.index = static_cast<int>(layers_.size());
    added.layer = layer;
    layers_.push_back(std::move(added));
  }

  void remove(const StreamedLayer& layer) noexcept override {
    // Copies out of peers' memory may still be under way, and products that read the weight.
    static_cast<void>(cudaStreamSynchronize(copy_stream_.get()));
    for (const Slot& slot : slots_) static_cast<void>(cudaEventSynchronize(slot.used.get()));
    SlottedLayer& removed = layers_[static_cast<std::size_t>(layer.index)];
    removed.layer.rows = nullptr;
    for (cuda::AddressRange& weight : removed.weight) weight.reset();
    for (Slot& slot : slots_) {
      if (slot.layer == layer.index) slot.layer = -1;
    }
  }

  std::size_t bytes_with(const StreamedLayer& layer) const override {
    const Extent largest = extent_of(largest_);
    const Extent mine = extent_of(layer.shape);
    return has_pages_ ? buffer_bytes()
                      : kSlots * (std::max(largest.before(), mine.before()) +
                                  std::max(largest.after(), mine.after()));
  }

  void start(const StreamedLayer& layer, StreamRef stream) override {
    const cuda::DeviceGuard guard(device());
    const cuda::CaptureId capture = cuda::capture_of(stream);
    if (find(layer, capture) == nullptr) pull(layer, next_slot(capture), stream, capture);
  }

  void consume(const StreamedLayer& layer, const std::function<void(const ArrivedRows&)>& use,
               StreamRef stream) override {
    const cuda::DeviceGuard guard(device());
    const cuda::CaptureId capture = cuda::capture_of(stream);
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
    const cuda::CaptureId capture = cuda::capture_of(stream);
    for (const Slot& slot : slots_) {
      if (slot.layer >= 0 && slot.capture == capture) {
        PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(stream.get(), slot.ready.get(), 0));
      }
    }
  }

  std::size_t buffer_bytes() const override {
    std::size_t bytes = 0;
    for (const Slot& slot : slots_) bytes += slot.before.bytes() + slot.after.bytes();
    return bytes;
  }

  IdenticalGather* identical_gather(Communicator& comm) override {
    if (!has_gather_) {
      gather_ = make_one_shot_gather(comm, largest_, device());
      has_gather_ = true;
    }
    return gather_.get();
  }

  SideStream* side_stream() override {
    if (!side_stream_) side_stream_ = make_side_stream_cuda(device());
    return side_stream_.get();
  }

 private:
  int ranks() const { return comm_ == nullptr ? 1 : comm_->size(); }
  int rank() const { return comm_ == nullptr ? 0 : comm_->rank(); }

  Extent extent_of(const GateShape& shape) const {
    return detail::extent_of(shape, rank(), ranks(), cuda::granularity_of(device()));
  }

  /// Makes the slots' memory with the first layer. It does not grow: captured graphs know where
  /// weights lie.
  void take_pages(const GateShape& shape) {
    const Extent mine = extent_of(shape);
    if (!has_pages_) {
      const Extent largest = extent_of(largest_);
      const auto make = [this](std::size_t bytes) {
        return bytes == 0 ? cuda::VirtualMemory() : cuda::VirtualMemory::create(device(), bytes);
      };
      for (Slot& slot : slots_) {
        slot.before = make(std::max(largest.before(), mine.before()));
        slot.after = make(std::max(largest.after(), mine.after()));
      }
      has_pages_ = true;
    }
    if (mine.before() <= slots_[0].before.bytes() && mine.after() <= slots_[0].after.bytes()) {
      return;
    }
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("WeightStream: made for weights of [{}, {}], needs one made for [{}, {}]",
                    largest_.output_size, largest_.hidden_size, shape.output_size,
                    shape.hidden_size));
  }

  /// The slot that holds the layer's weight or will, as far as this capture (or the stream's work
  /// outside of captures) can know.
  Slot* find(const StreamedLayer& layer, cuda::CaptureId capture) {
    // A replay of a captured graph overwrites the buffers behind our back: once there is a graph,
    // nothing that was started before a call is trusted outside of captures.
    if (capture == 0 && was_captured_) return nullptr;
    for (Slot& slot : slots_) {
      if (slot.layer == layer.index && slot.capture == capture) return &slot;
    }
    return nullptr;
  }

  /// The slot to fill next: one whose weight has been used, else the older one.
  Slot* next_slot(cuda::CaptureId capture) {
    was_captured_ = was_captured_ || capture != 0;
    for (std::size_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots_[(newest_ + 1 + i) % kSlots];
      if (slot.layer < 0) return &slot;
    }
    return &slots_[(newest_ + 1) % kSlots];
  }

  Slot* other_than(const Slot* slot) { return slot == slots_.data() ? &slots_[1] : slots_.data(); }

  const StreamedLayer* layer_after(const StreamedLayer& layer, cuda::CaptureId capture) const {
    if (capture == 0 && was_captured_) return nullptr;
    const std::size_t count = layers_.size();
    for (std::size_t i = 1; i < count; ++i) {
      const std::size_t at = static_cast<std::size_t>(layer.index) + i;
      // A capture that ends with this layer could not join a copy for the first one.
      if (capture != 0 && at >= count) return nullptr;
      if (layers_[at % count].layer.rows != nullptr) return &layers_[at % count].layer;
    }
    return nullptr;
  }

  std::byte* weight_in(const Slot& slot, const StreamedLayer& layer) const {
    const auto at = static_cast<std::size_t>(&slot - slots_.data());
    return layers_[static_cast<std::size_t>(layer.index)].weight[at].data();
  }

  void pull(const StreamedLayer& layer, Slot* slot, StreamRef stream, cuda::CaptureId capture) {
    // Outside of captures the copy waits for the buffer alone, so that it can run ahead of `stream`;
    // in a capture it must fork from it.
    const bool must_fork = capture != 0 || was_captured_;
    if (must_fork) {
      PENSTOCK_CUDA_CHECK(cudaEventRecord(fork_.get(), stream.get()));
      PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(copy_stream_.get(), fork_.get(), 0));
    } else if (slot->has_used) {
      PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(copy_stream_.get(), slot->used.get(), 0));
    }
    const auto row_bytes = static_cast<std::size_t>(layer.shape.hidden_size) * sizeof(BF16);
    // Ranks start with different peers, so that no peer's link serves all of them at once.
    for (int step = 1; step < ranks(); ++step) {
      const int from = (rank() + step) % ranks();
      const IndexRange rows = even_share(layer.shape.output_size, ranks(), from);
      if (rows.size() == 0) continue;
      std::byte* to = weight_in(*slot, layer) + static_cast<std::size_t>(rows.begin) * row_bytes;
      PENSTOCK_CUDA_CHECK(cudaMemcpyAsync(to, layer.rows->of(from),
                                          static_cast<std::size_t>(rows.size()) * row_bytes,
                                          cudaMemcpyDeviceToDevice, copy_stream_.get()));
    }
    PENSTOCK_CUDA_CHECK(cudaEventRecord(slot->ready.get(), copy_stream_.get()));
    slot->layer = layer.index;
    slot->capture = capture;
    newest_ = static_cast<std::size_t>(slot - slots_.data());
    count_transfer();
  }

  void use_pieces(const StreamedLayer& layer, const Slot& slot,
                  const std::function<void(const ArrivedRows&)>& use, StreamRef stream) const {
    const std::int64_t hidden = layer.shape.hidden_size;
    const IndexRange all{0, layer.shape.output_size};
    const auto* data = reinterpret_cast<const BF16*>(weight_in(slot, layer));
    const IndexRange own = even_share(layer.shape.output_size, ranks(), rank());
    const auto use_rows = [&](const IndexRange& rows) {
      if (rows.size() > 0) use({rows, data + rows.begin * hidden});
    };
    const bool is_in_pieces = arrival_ == WeightArrival::Pieces && are_pieces_aligned(layer.shape);
    if (is_in_pieces) use_rows(own);
    PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(stream.get(), slot.ready.get(), 0));
    if (!is_in_pieces) {
      use_rows(all);
      return;
    }
    use_rows({0, own.begin});
    use_rows({own.end, all.end});
  }

  /// Whether every rank's columns of the results begin at a multiple of 16 bytes. Otherwise a product
  /// of some columns would need another algorithm than that of all, with other bits.
  bool are_pieces_aligned(const GateShape& shape) const {
    constexpr std::int64_t kElements = 16 / sizeof(BF16);
    for (int rank = 0; rank < ranks(); ++rank) {
      if (even_share(shape.output_size, ranks(), rank).begin % kElements != 0) return false;
    }
    return shape.output_size % kElements == 0;
  }

  Communicator* comm_;
  GateShape largest_;
  WeightArrival arrival_;
  cuda::UniqueStream copy_stream_;
  cuda::UniqueEvent fork_;
  std::array<Slot, kSlots> slots_;
  std::size_t newest_ = kSlots - 1;
  bool has_pages_ = false;
  std::vector<SlottedLayer> layers_;
  bool was_captured_ = false;
  std::unique_ptr<IdenticalGather> gather_;
  bool has_gather_ = false;
  std::unique_ptr<SideStream> side_stream_;
};

}  // namespace

std::unique_ptr<WeightStreamImpl> make_weight_stream_cuda(Communicator* comm, GateShape largest,
                                                          Device device, WeightArrival arrival) {
  return std::make_unique<CudaWeightStream>(comm, largest, device, arrival);
}

}  // namespace penstock::detail
