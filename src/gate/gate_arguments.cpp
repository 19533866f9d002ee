#include "gate/gate_arguments.hpp"

#include <fmt/core.h>

#include <optional>
#include <string>
#include <utility>

#include "core/build_config.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

std::string text_of(std::optional<std::size_t> value) {
  return value ? std::to_string(*value) : "none";
}

void check_dtype(const char* name, DType dtype) {
  if (dtype == DType::BF16 || dtype == DType::F32) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("GateLinear: {} is {}, needs BF16 or F32", name, to_string(dtype)));
}

void check_weight(const GateContext& gate, std::size_t found, WeightPart given, WeightPart needed) {
  const WeightRegion region = weight_region(gate, given);
  const auto [rows, columns] = std::pair(region.rows.size(), region.columns.size());
  if (found != static_cast<std::size_t>(rows * columns)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: weight has {} elements, {} of [{}, {}] on rank {} of {} "
                            "needs {} ([{}, {}])",
                            found, to_string(given), gate.shape.output_size, gate.shape.hidden_size,
                            gate.rank, gate.ranks, rows * columns, rows, columns));
  }
  if (given != WeightPart::Full && given != needed && gate.ranks > 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("GateLinear: weight is given as {}, the strategy needs {} or full",
                            to_string(given), to_string(needed)));
  }
}

}  // namespace

WeightRegion weight_region(const GateContext& gate, WeightPart part) {
  WeightRegion region{{0, gate.shape.output_size}, {0, gate.shape.hidden_size}};
  if (part == WeightPart::Rows) region.rows = gate.rows_of(gate.rank);
  if (part == WeightPart::Columns) region.columns = gate.columns_of(gate.rank);
  return region;
}

void check_gate_arguments(const GateContext& gate, std::size_t weight_elements, WeightPart given,
                          WeightPart needed, const GateOptions& options) {
  expects(gate.shape.hidden_size >= 1 && gate.shape.output_size >= 1,
          "GateLinear: hidden_size and output_size need to be at least 1");
  check_dtype("k_shard_sums", options.k_shard_sums);
  check_dtype("n_shard_projections", options.n_shard_projections);
  if (options.device.kind == DeviceKind::Cuda && !build::has_cuda) {
    throw Error(ErrorCode::Unsupported, "GateLinear: built without PENSTOCK_WITH_CUDA");
  }
  if (options.weight_stream && options.weight_stream->impl().device() != options.device) {
    throw Error(ErrorCode::InvalidArgument, "GateLinear: weight_stream is on another device");
  }
  check_weight(gate, weight_elements, given, needed);
}

AgreedFields gate_choices(const GateShape& shape, WeightPart part, const GateOptions& options) {
  const auto name = [](auto value) { return std::string(to_string(value)); };
  const GateRates rates = options.rates.value_or(typical_gate_rates(options.device.kind));
  return {{"hidden_size", std::to_string(shape.hidden_size)},
          {"output_size", std::to_string(shape.output_size)},
          {"gating", name(shape.gating)},
          {"strategy", name(options.strategy)},
          {"weight part", name(part)},
          {"rounding", options.rounding == GateRounding::Once ? "once" : "three times"},
          {"k_shard_sums", name(options.k_shard_sums)},
          {"n_shard_projections", name(options.n_shard_projections)},
          {"max_temp_bytes", text_of(options.max_temp_bytes)},
          {"max_resident_bytes", text_of(options.max_resident_bytes)},
          {"device kind", options.device.kind == DeviceKind::Cpu ? "cpu" : "cuda"},
          {"rates", fmt::format("{} {} {} {} {}", rates.link_bytes_per_second,
                                rates.flops_per_second, rates.memory_bytes_per_second,
                                rates.collective_seconds, options.window_seconds)},
          {"overlaps_blocks", options.overlaps_blocks ? "on" : "off"},
          {"check_calls", options.check_calls ? "on" : "off"}};
}

}  // namespace penstock::detail
