#include "penstock/engram/ngram_hasher_cuda.hpp"

#include <fmt/format.h>

#include <limits>
#include <vector>

#include "core/build_config.hpp"
#include "engram/ngram_hash_cuda.hpp"
#include "engram/ngram_hasher_state.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

template <typename Value>
Buffer place(const std::vector<Value>& values, Device device) {
  return Buffer::copy_of(std::as_bytes(std::span(values)), device);
}

template <typename Value>
const Value* pointer(const Buffer& buffer) {
  return reinterpret_cast<const Value*>(buffer.data());
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "NgramHasherCuda::hash: " + message);
}

void check_cache(const DeviceSlotCache& cache) {
  if (cache.values == nullptr || cache.slot_mapping == nullptr || cache.block_table == nullptr) {
    refuse("the slot cache has a null pointer, needed: values, slot_mapping and block_table");
  }
  if (cache.num_slots < 1 || cache.rows < 1 || cache.max_blocks < 1 || cache.block_size < 1) {
    refuse(
        fmt::format("the slot cache has {} slots, {} rows of {} blocks of {}; needed: at least "
                    "1 of each",
                    cache.num_slots, cache.rows, cache.max_blocks, cache.block_size));
  }
}

}  // namespace

struct NgramHasherCuda::State {
  State(const NgramHasher::State& source, Device where)
      : device(where),
        token_map(place(source.token_map, where)),
        primes(place(source.primes, where)),
        reciprocals(place(source.reciprocals, where)),
        offsets(place(source.offsets, where)),
        multipliers(place(source.multipliers, where)),
        rejected(Buffer::zeros(where, sizeof(std::uint64_t))),
        parameters(source.parameters) {
    parameters.token_map = pointer<std::int32_t>(token_map);
    parameters.primes = pointer<std::uint32_t>(primes);
    parameters.reciprocals = pointer<std::uint64_t>(reciprocals);
    parameters.offsets = pointer<std::uint32_t>(offsets);
    parameters.multipliers = pointer<std::uint64_t>(multipliers);
  }

  void check(const DeviceTokenBatch& batch, std::size_t out) const {
    const std::int64_t row = std::int64_t{parameters.layers} * parameters.orders * parameters.heads;
    if (batch.tokens < 0 || batch.tokens > std::numeric_limits<std::int32_t>::max()) {
      refuse(fmt::format("found {} tokens, needed: 0 to 2^31 - 1", batch.tokens));
    }
    if (static_cast<std::int64_t>(out) != batch.tokens * row) {
      refuse(fmt::format("out has {} entries, needed: {} tokens times {}", out, batch.tokens, row));
    }
    if (batch.tokens == 0) return;
    if (batch.requests < 1) refuse("found tokens and no request, needed: at least 1");
    if (batch.token_ids == nullptr || batch.query_start == nullptr || batch.positions == nullptr) {
      refuse("a pointer is null, needed: token_ids, query_start and positions");
    }
  }

  detail::NgramHashArguments arguments(const DeviceTokenBatch& batch,
                                       std::span<std::int32_t> out) const {
    return {.parameters = parameters,
            .batch = {.token_ids = batch.token_ids,
                      .positions = batch.positions,
                      .query_start = batch.query_start,
                      .lookback = batch.lookback,
                      .tokens = batch.tokens,
                      .requests = batch.requests},
            .num_tokens = batch.num_tokens,
            .rejected = reinterpret_cast<std::uint64_t*>(rejected.data()),
            .out = out.data()};
  }

  Device device;
  Buffer token_map;
  Buffer primes;
  Buffer reciprocals;
  Buffer offsets;
  Buffer multipliers;
  Buffer rejected;  ///< One 64-bit counter.
  detail::NgramHashParameters parameters;
};

NgramHasherCuda::NgramHasherCuda(const NgramHasher& hasher, Device device) {
  expects(device.kind == DeviceKind::Cuda,
          "NgramHasherCuda: the device is cpu, needed: a CUDA device");
  state_ = std::make_shared<const State>(hasher.state(), device);
}

void NgramHasherCuda::hash(const DeviceTokenBatch& batch, std::span<std::int32_t> out,
                           StreamRef stream) const {
  state_->check(batch, out.size());
  if (batch.tokens == 0) return;
  if constexpr (build::has_cuda) {
    detail::hash_tokens_cuda(state_->arguments(batch, out), state_->device, stream);
  }
  static_cast<void>(stream);  // without CUDA no object can be made
}

void NgramHasherCuda::hash(const DeviceTokenBatch& batch, const DeviceSlotCache& cache,
                           std::span<std::int32_t> out, StreamRef stream) const {
  state_->check(batch, out.size());
  check_cache(cache);
  if (batch.tokens == 0) return;
  detail::NgramHashArguments arguments = state_->arguments(batch, out);
  arguments.slots = {.values = cache.values,
                     .block_table = cache.block_table,
                     .num_slots = cache.num_slots,
                     .rows = cache.rows,
                     .max_blocks = cache.max_blocks,
                     .block_size = cache.block_size};
  if constexpr (build::has_cuda) {
    detail::write_slots_cuda({.parameters = state_->parameters,
                              .token_ids = batch.token_ids,
                              .slot_mapping = cache.slot_mapping,
                              .tokens = batch.tokens,
                              .num_tokens = batch.num_tokens,
                              .values = cache.values,
                              .num_slots = cache.num_slots},
                             state_->device, stream);
    detail::hash_tokens_cuda(arguments, state_->device, stream);
  }
  static_cast<void>(stream);  // without CUDA no object can be made
}

std::uint64_t NgramHasherCuda::rejected_tokens() const {
  std::uint64_t count = 0;
  copy_bytes(std::as_writable_bytes(std::span(&count, 1)), state_->rejected);
  return count;
}

std::int64_t NgramHasherCuda::resident_bytes() const {
  const State& state = *state_;
  return static_cast<std::int64_t>(state.token_map.bytes() + state.primes.bytes() +
                                   state.reciprocals.bytes() + state.offsets.bytes() +
                                   state.multipliers.bytes() + state.rejected.bytes());
}

}  // namespace penstock
