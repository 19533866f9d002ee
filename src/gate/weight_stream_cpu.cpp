#include <algorithm>

#include "gate/weight_stream_impl.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

/// Reads the other ranks' rows in place, or gathers them when a layer needs them.
class CpuWeightStream final : public WeightStreamImpl {
 public:
  CpuWeightStream(Communicator* comm, GateShape largest)
      : WeightStreamImpl(Device::cpu()),
        comm_(comm),
        largest_(largest) {}

  void add(StreamedLayer& layer) override {
    layer.index = num_layers_++;
    const std::size_t needed = bytes_with(layer);
    if (needed > gathered_.bytes()) gathered_ = Buffer::allocate(Device::cpu(), needed);
  }

  void remove(const StreamedLayer& /*layer*/) noexcept override {}

  std::size_t bytes_with(const StreamedLayer& layer) const override {
    if (ranks() == 1 || layer.rows->are_readable()) return gathered_.bytes();
    return std::max(gather_bytes(layer.shape), gather_bytes(largest_));
  }

  void start(const StreamedLayer& /*layer*/, StreamRef /*stream*/) override {}

  void consume(const StreamedLayer& layer, const std::function<void(const ArrivedRows&)>& use,
               StreamRef /*stream*/) override {
    const bool must_gather = ranks() > 1 && !layer.rows->are_readable();
    if (must_gather) gather(layer);
    const int mine = ranks() > 1 ? comm_->rank() : 0;
    for (int step = 0; step < ranks(); ++step) {
      const int rank =
          (mine + step) % ranks();  // each rank starts with its own, then its neighbour
      const BF16* data = rank == mine  ? layer.rows->own().data()
                         : must_gather ? gathered_.as<BF16>().data() + rank * slot(layer.shape)
                                       : layer.rows->of(rank);
      use({even_share(layer.shape.output_size, ranks(), rank), data});
    }
  }

  std::size_t buffer_bytes() const override { return gathered_.bytes(); }

 private:
  int ranks() const { return comm_ == nullptr ? 1 : comm_->size(); }

  /// Elements of the longest slice: what an all-gather moves for each rank.
  std::int64_t slot(const GateShape& shape) const {
    return (shape.output_size + ranks() - 1) / ranks() * shape.hidden_size;
  }

  std::size_t gather_bytes(const GateShape& shape) const {
    return static_cast<std::size_t>(slot(shape) * ranks()) * sizeof(BF16);
  }

  void gather(const StreamedLayer& layer) {
    const auto block = static_cast<std::size_t>(slot(layer.shape));
    const auto all = gathered_.as<BF16>().first(block * static_cast<std::size_t>(ranks()));
    const auto mine = all.subspan(block * static_cast<std::size_t>(comm_->rank()), block);
    const auto own = layer.rows->own();
    std::fill(std::ranges::copy(own, mine.begin()).out, mine.end(), BF16{});
    comm_->all_gather(std::as_bytes(mine), std::as_writable_bytes(all));
    count_transfer();
  }

  Communicator* comm_;
  GateShape largest_;
  Buffer gathered_;
  int num_layers_ = 0;
};

}  // namespace

std::unique_ptr<WeightStreamImpl> make_weight_stream_cpu(Communicator* comm, GateShape largest) {
  return std::make_unique<CpuWeightStream>(comm, largest);
}

}  // namespace penstock::detail
