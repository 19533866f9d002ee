#include "penstock/engram/engram_injection.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/build_config.hpp"
#include "engram/project_cuda.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/matmul.hpp"
#include "penstock/engram/engram_gate.hpp"

namespace penstock {
namespace {

Buffer place(const std::vector<BF16>& values, Device device) {
  return Buffer::copy_of(std::as_bytes(std::span(values)), device);
}

}  // namespace

struct EngramInjection::State {
  Device device;
  std::int64_t max_tokens = 0;
  int hc_mult = 1;
  int dim = 0;
  std::int64_t row_width = 0;
  float eps = 0;
  Buffer wkv;
  Buffer q_weight;
  Buffer k_weight;
  Buffer kv;                                                    ///< [max_tokens, (hc + 1) * dim]
  std::int64_t projected = 0;                                   ///< Tokens that kv holds.
  std::unique_ptr<detail::DeviceProjection> device_projection;  ///< CUDA only.

  std::int64_t kv_width() const { return std::int64_t{hc_mult + 1} * dim; }
};

EngramInjection::EngramInjection(const EngramWeights& weights, Device device,
                                 std::int64_t max_tokens) {
  expects(max_tokens >= 1, "EngramInjection: max_tokens is below 1");
  state_ = std::make_unique<State>();
  state_->device = device;
  state_->max_tokens = max_tokens;
  state_->hc_mult = weights.hc_mult;
  state_->dim = weights.dim;
  state_->row_width = weights.row_width;
  state_->eps = weights.eps;
  state_->wkv = place(weights.wkv, device);
  state_->q_weight = place(weights.q_weight, device);
  state_->k_weight = place(weights.k_weight, device);
  if constexpr (build::has_cuda) {
    if (device.kind == DeviceKind::Cuda) {
      state_->device_projection = detail::make_device_projection(device);
    }
  }
  state_->kv = Buffer::allocate(
      device, static_cast<std::size_t>(max_tokens * state_->kv_width()) * sizeof(BF16));
}

EngramInjection::~EngramInjection() = default;
EngramInjection::EngramInjection(EngramInjection&&) noexcept = default;
EngramInjection& EngramInjection::operator=(EngramInjection&&) noexcept = default;

void EngramInjection::project(std::span<const BF16> rows, StreamRef stream) {
  State& state = *state_;
  const auto elements = static_cast<std::int64_t>(rows.size());
  const std::int64_t tokens = elements / state.row_width;
  if (tokens * state.row_width != elements || tokens > state.max_tokens) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("EngramInjection: rows have {} elements, a multiple of {} up to {} "
                            "tokens is needed",
                            elements, state.row_width, state.max_tokens));
  }
  state.projected = tokens;
  if (tokens == 0) return;
  const MatmulShape shape{.m = tokens, .n = state.kv_width(), .k = state.row_width};
  switch (state.device.kind) {
    case DeviceKind::Cpu:
      matmul_bf16(shape, rows, state.wkv.as<const BF16>(),
                  state.kv.as<BF16>().first(static_cast<std::size_t>(tokens * state.kv_width())));
      return;
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) {
        state.device_projection->run(shape, rows.data(), state.wkv.as<BF16>().data(),
                                     state.kv.as<BF16>().data(), stream);
        return;
      }
      static_cast<void>(stream);
      throw Error(ErrorCode::Unsupported, "EngramInjection: built without PENSTOCK_WITH_CUDA");
  }
}

void EngramInjection::inject(std::span<const BF16> hidden, std::span<const std::uint8_t> mask,
                             std::span<BF16> out, StreamRef stream) {
  const State& state = *state_;
  const auto kv_elements = static_cast<std::size_t>(state.projected * state.kv_width());
  EngramGateArguments arguments;
  arguments.hidden = hidden;
  arguments.kv = state.kv.as<const BF16>().first(kv_elements);
  arguments.q_weight = state.q_weight.as<const BF16>();
  arguments.k_weight = state.k_weight.as<const BF16>();
  arguments.eps = state.eps;
  arguments.mask = mask;
  arguments.out = out;
  engram_gate({state.projected, state.hc_mult, state.dim}, arguments, state.device, stream);
}

int EngramInjection::hc_mult() const {
  return state_->hc_mult;
}
int EngramInjection::dim() const {
  return state_->dim;
}
std::int64_t EngramInjection::row_width() const {
  return state_->row_width;
}

std::int64_t EngramInjection::resident_bytes() const {
  return static_cast<std::int64_t>(state_->wkv.bytes() + state_->q_weight.bytes() +
                                   state_->k_weight.bytes() + state_->kv.bytes());
}

}  // namespace penstock
