#include "penstock/gate/strategy.hpp"

#include <array>
#include <utility>

#include "penstock/core/error.hpp"

namespace penstock {
namespace {

template <typename Value, std::size_t kCount>
using Names = std::array<std::pair<Value, std::string_view>, kCount>;

constexpr Names<GateStrategy, 6> kStrategies{{{GateStrategy::Auto, "auto"},
                                              {GateStrategy::Replicated, "replicated"},
                                              {GateStrategy::KShard, "k_shard"},
                                              {GateStrategy::NShard, "n_shard"},
                                              {GateStrategy::WeightGather, "weight_gather"},
                                              {GateStrategy::IdenticalRows, "identical_rows"}}};
constexpr Names<WeightPart, 3> kParts{
    {{WeightPart::Full, "full"}, {WeightPart::Rows, "rows"}, {WeightPart::Columns, "columns"}}};
constexpr Names<GatingType, 2> kGatings{
    {{GatingType::Elementwise, "elementwise"}, {GatingType::Headwise, "headwise"}}};

template <typename Value, std::size_t kCount>
std::string_view name_of(const Names<Value, kCount>& names, Value value) {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) return name;
  }
  throw Error(ErrorCode::Internal, "to_string: not an enumerator");
}

template <typename Value, std::size_t kCount>
std::optional<Value> value_of(const Names<Value, kCount>& names, std::string_view name) {
  for (const auto& [value, candidate] : names) {
    if (candidate == name) return value;
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(GateStrategy strategy) {
  return name_of(kStrategies, strategy);
}

std::optional<GateStrategy> parse_gate_strategy(std::string_view name) {
  return value_of(kStrategies, name);
}

std::string_view to_string(WeightPart part) {
  return name_of(kParts, part);
}

std::optional<WeightPart> parse_weight_part(std::string_view name) {
  return value_of(kParts, name);
}

std::string_view to_string(GatingType gating) {
  return name_of(kGatings, gating);
}

std::optional<GatingType> parse_gating_type(std::string_view name) {
  return value_of(kGatings, name);
}

IndexRange even_share(std::int64_t count, int ranks, int rank) {
  expects(count >= 0, "even_share: count is negative");
  expects(rank >= 0 && rank < ranks, "even_share: rank lies outside the group");
  return {rank * count / ranks, (rank + std::int64_t{1}) * count / ranks};
}

}  // namespace penstock
