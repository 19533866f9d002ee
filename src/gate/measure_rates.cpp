#include "gate/measure_rates.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/build_config.hpp"
#include "core/keyed_numbers.hpp"
#include "gate/agreement.hpp"
#include "gate/operations.hpp"
#include "gate/peer_rows.hpp"
#include "gate/weight_stream_impl.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/event.hpp"
#include "penstock/gate/gate_rates.hpp"
#include "penstock/gate/weight_stream.hpp"

namespace penstock::detail {
namespace {

constexpr int kWarmUps = 2;

/// One rank's side of a measurement.
class RateMeter {
 public:
  RateMeter(Communicator* comm, Device device, const RateSizes& sizes, StreamRef stream)
      : comm_(comm),
        device_(device),
        sizes_(sizes),
        stream_(stream),
        begin_(Event::create(device)),
        end_(Event::create(device)),
        operations_(make_gate_operations(device, sizes.shape.output_size)),
        weight_(random(sizes.shape.output_size * sizes.shape.hidden_size)),
        x_(random(most_tokens() * sizes.shape.hidden_size)),
        attn_out_(random(most_results())),
        out_(random(most_results())),
        tile_(Buffer::allocate(
            device, operations_->tile_bytes(sizes.product_tokens, sizes.shape.output_size))),
        gathered_(Buffer::zeros(device, gathered_bytes())) {}

  GateRates measure() {
    GateRates rates = typical_gate_rates(device_.kind);
    const std::int64_t hidden = sizes_.shape.hidden_size;
    rates.flops_per_second =
        2.0 * static_cast<double>(hidden * sizes_.product_tokens * sizes_.product_rows) /
        product_seconds(sizes_.product_tokens, sizes_.product_rows);
    rates.memory_bytes_per_second = static_cast<double>(weight_.bytes()) /
                                    product_seconds(sizes_.few_tokens, sizes_.shape.output_size);
    if (comm_ == nullptr) return rates;
    if (const auto found = link_bytes_per_second()) rates.link_bytes_per_second = *found;
    if (comm_->device().kind == device_.kind) {
      rates.collective_seconds = gather_seconds(sizes_.collective_bytes);
    }
    return rates;
  }

 private:
  std::int64_t most_tokens() const { return std::max(sizes_.product_tokens, sizes_.few_tokens); }
  std::int64_t most_results() const {
    return std::max(sizes_.product_tokens * sizes_.product_rows,
                    sizes_.few_tokens * sizes_.shape.output_size);
  }

  std::size_t gathered_bytes() const {
    const std::int64_t ranks = comm_ == nullptr ? 0 : comm_->size();
    return static_cast<std::size_t>(ranks * std::max(sizes_.gather_bytes, sizes_.collective_bytes));
  }

  /// A block of random numbers, over and over: a processor's clock depends on what it multiplies.
  Buffer random(std::int64_t count) {
    std::vector<BF16> block(static_cast<std::size_t>(std::min<std::int64_t>(count, 1 << 16)));
    fill_even_numbers(block, 0);
    Buffer buffer = Buffer::allocate(device_, static_cast<std::size_t>(count) * sizeof(BF16));
    copy_bytes(buffer, std::as_bytes(std::span(block)));
    for (std::size_t filled = block.size() * sizeof(BF16); filled < buffer.bytes();) {
      const std::size_t more = std::min(filled, buffer.bytes() - filled);
      const auto row = static_cast<std::int64_t>(more);
      operations_->copy_rows({.from = buffer.data(),
                              .from_stride = row,
                              .to = buffer.data() + filled,
                              .to_stride = row,
                              .row_bytes = row,
                              .rows = 1},
                             stream_);
      filled += more;
    }
    return buffer;
  }

  void synchronize() {
    end_.record(stream_);
    end_.synchronize();
  }

  /// The median time of `body`, which all ranks begin together.
  double seconds_of(
      const std::function<void()>& body, const std::function<void()>& afterwards = [] {}) {
    std::vector<double> times;
    for (int i = 0; i < kWarmUps + sizes_.repeats; ++i) {
      synchronize();
      if (comm_ != nullptr) comm_->barrier();
      begin_.record(stream_);
      body();
      end_.record(stream_);
      const std::chrono::duration<double> time = end_.since(begin_);
      if (i >= kWarmUps) times.push_back(time.count());
      afterwards();
    }
    std::ranges::sort(times);
    // A clock that saw nothing pass must not make a rate endless.
    return std::max(times[times.size() / 2], 1e-9);
  }

  /// The time of one `body` among several, one after the other.
  double batch_seconds(const std::function<void()>& body) {
    return seconds_of([&] { run_batch(body); }) / sizes_.batch;
  }

  void run_batch(const std::function<void()>& body) const {
    for (int i = 0; i < sizes_.batch; ++i) body();
  }

  double product_seconds(std::int64_t tokens, std::int64_t rows) {
    const GatedProduct product{.tokens = tokens,
                               .rows = rows,
                               .hidden = sizes_.shape.hidden_size,
                               .x = x_.as<const BF16>().data(),
                               .w = weight_.as<const BF16>().data(),
                               .target = {.attn = attn_out_.as<const BF16>().data(),
                                          .attn_stride = rows,
                                          .out = out_.as<BF16>().data(),
                                          .out_stride = rows},
                               .tile = tile_.as<std::byte>()};
    return batch_seconds([&] { operations_->gated_product(product, stream_); });
  }

  /// Nothing where no data can travel.
  std::optional<double> link_bytes_per_second() {
    if (device_.kind == DeviceKind::Cuda) {
      if (const auto pulled = pulled_bytes_per_second()) return pulled;
    }
    if (comm_->device().kind != device_.kind) return std::nullopt;
    const auto others = static_cast<double>(comm_->size() - 1);
    return others * static_cast<double>(sizes_.gather_bytes) / gather_seconds(sizes_.gather_bytes);
  }

  /// Weights on their way as the layers of a model pull them. Nothing where they cannot be pulled.
  std::optional<double> pulled_bytes_per_second() {
    const IndexRange own = even_share(sizes_.shape.output_size, comm_->size(), comm_->rank());
    const WeightSlice slice{.data = weight_.as<const BF16>().data(),
                            .stride = sizes_.shape.hidden_size,
                            .rows = own.size(),
                            .columns = sizes_.shape.hidden_size};
    const auto rows = share_rows(slice);
    if (!rows->are_readable()) return std::nullopt;
    WeightStream weights(comm_, sizes_.shape, device_);
    StreamedLayer layer{.shape = sizes_.shape, .rows = rows.get()};
    agree(comm_, "measure_gate_rates", [&]() -> AgreedFields {
      weights.impl().add(layer);
      return {};
    });
    const auto pull = [&] {
      weights.impl().start(layer, stream_);
      weights.join(stream_);
    };
    const auto use = [&] { weights.impl().consume(layer, [](const ArrivedRows&) {}, stream_); };
    const double seconds = seconds_of(pull, use);
    synchronize();
    comm_->barrier();  // nobody reads this rank's rows any more
    weights.impl().remove(layer);
    const auto bytes = static_cast<double>((sizes_.shape.output_size - own.size()) *
                                           sizes_.shape.hidden_size * std::int64_t{sizeof(BF16)});
    return bytes / seconds;
  }

  std::unique_ptr<PeerRows> share_rows(const WeightSlice& slice) {
    if constexpr (build::has_cuda) {
      if (device_.kind == DeviceKind::Cuda) {
        return share_rows_cuda(*comm_, device_, slice, sizes_.shape.output_size);
      }
    }
    return share_rows_cpu(comm_, slice);
  }

  double gather_seconds(std::int64_t bytes_of_a_rank) {
    const auto bytes = static_cast<std::size_t>(bytes_of_a_rank);
    const auto ranks = static_cast<std::size_t>(comm_->size());
    const auto to = gathered_.as<std::byte>().first(bytes * ranks);
    const auto mine = to.subspan(bytes * static_cast<std::size_t>(comm_->rank()), bytes);
    const double seconds = batch_seconds([&] { comm_->all_gather(mine, to, stream_); });
    comm_->barrier();
    return seconds;
  }

  Communicator* comm_;
  Device device_;
  RateSizes sizes_;
  StreamRef stream_;
  Event begin_;
  Event end_;
  std::unique_ptr<GateOperations> operations_;
  Buffer weight_;
  Buffer x_;
  Buffer attn_out_;
  Buffer out_;
  Buffer tile_;
  Buffer gathered_;
};

/// For each figure the slowest rank's.
GateRates slowest(Communicator& comm, const GateRates& mine) {
  GateRates rates = mine;
  for (const auto& bytes : comm.all_gather_object(std::as_bytes(std::span(&mine, 1)))) {
    GateRates other;
    expects(bytes.size() == sizeof(other), "measure_gate_rates: ranks of different builds");
    std::memcpy(&other, bytes.data(), sizeof(other));
    rates.link_bytes_per_second =
        std::min(rates.link_bytes_per_second, other.link_bytes_per_second);
    rates.flops_per_second = std::min(rates.flops_per_second, other.flops_per_second);
    rates.memory_bytes_per_second =
        std::min(rates.memory_bytes_per_second, other.memory_bytes_per_second);
    rates.collective_seconds = std::max(rates.collective_seconds, other.collective_seconds);
  }
  return rates;
}

}  // namespace

RateSizes rate_sizes(DeviceKind device) {
  switch (device) {
    // A weight of 128 MiB is more than a GPU's second-level cache holds.
    case DeviceKind::Cuda:
      return {.shape = {.hidden_size = 4096, .output_size = 16384},
              .product_tokens = 2048,
              .product_rows = 16384,
              .few_tokens = 16,
              .collective_bytes = 4096,
              .gather_bytes = std::int64_t{32} << 20,
              .batch = 4,
              .repeats = 9};
    case DeviceKind::Cpu:
      return {.shape = {.hidden_size = 2816, .output_size = 8192},
              .product_tokens = 64,
              .product_rows = 1024,
              .few_tokens = 1,
              .collective_bytes = 256,
              .gather_bytes = std::int64_t{4} << 20,
              .repeats = 3};
  }
  throw Error(ErrorCode::Internal, "measure_gate_rates: not a DeviceKind");
}

GateRates measure_gate_rates(Communicator* comm, Device device, const RateSizes& sizes,
                             StreamRef stream) {
  Communicator* group = comm != nullptr && comm->size() > 1 ? comm : nullptr;
  std::optional<RateMeter> meter;
  agree(group, "measure_gate_rates", [&]() -> AgreedFields {
    if (device.kind == DeviceKind::Cuda && !build::has_cuda) {
      throw Error(ErrorCode::Unsupported, "measure_gate_rates: built without PENSTOCK_WITH_CUDA");
    }
    meter.emplace(group, device, sizes, stream);
    return {{"device kind", device.kind == DeviceKind::Cpu ? "cpu" : "cuda"}};
  });
  if (group == nullptr) return meter->measure();
  try {
    return slowest(*group, meter->measure());
  } catch (const Error& error) {
    // The others wait for this rank in the middle of a measurement, unless it heard of theirs.
    if (error.code() != ErrorCode::PeerFailed) group->abort(error.what());
    throw;
  } catch (const std::exception& error) {
    group->abort(error.what());
    throw;
  }
}

}  // namespace penstock::detail

namespace penstock {

GateRates measure_gate_rates(Communicator* comm, Device device, StreamRef stream) {
  return detail::measure_gate_rates(comm, device, detail::rate_sizes(device.kind), stream);
}

std::string to_string(const GateRates& rates) {
  return fmt::format(
      "link {:.1f} GB/s, products {:.2f} TFLOP/s, memory {:.1f} GB/s, collective {:.1f} us",
      rates.link_bytes_per_second / 1e9, rates.flops_per_second / 1e12,
      rates.memory_bytes_per_second / 1e9, rates.collective_seconds * 1e6);
}

}  // namespace penstock
