#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/checkpoint/model_config.hpp"

namespace penstock {

/// How the ranks of a group share the work of one gate.
enum class GateStrategy {
  Auto,          ///< The planner picks one of the others, alike on all ranks.
  Replicated,    ///< Every rank holds the whole weight; nothing is exchanged.
  KShard,        ///< Columns of the weight; tokens travel, partial sums are added.
  NShard,        ///< Rows of the weight; tokens travel, projections travel back.
  WeightGather,  ///< Rows of the weight; the weight travels, tokens stay.
  IdenticalRows  ///< Rows of the weight, tokens that are equal on all ranks; results travel.
};

/// "auto", "replicated", "k_shard", "n_shard", "weight_gather" or "identical_rows".
std::string_view to_string(GateStrategy strategy);

/// The inverse of to_string; nothing for another word.
std::optional<GateStrategy> parse_gate_strategy(std::string_view name);

/// Which part of the weight [G, H] a caller brings, or a rank keeps. Never guessed from sizes.
enum class WeightPart {
  Full,    ///< All of it.
  Rows,    ///< Rows [r * G / P, (r + 1) * G / P) of it, rounded down, for rank r of P.
  Columns  ///< Columns [r * H / P, (r + 1) * H / P), dense: the slice has H / P columns.
};

/// "full", "rows" or "columns".
std::string_view to_string(WeightPart part);

/// The inverse of to_string; nothing for another word.
std::optional<WeightPart> parse_weight_part(std::string_view name);

/// "elementwise" or "headwise".
std::string_view to_string(GatingType gating);

/// The inverse of to_string; nothing for another word.
std::optional<GatingType> parse_gating_type(std::string_view name);

/// Sizes of a gate.
struct GateShape {
  std::int64_t hidden_size = 0;  ///< H: columns of the weight, width of x.
  std::int64_t output_size = 0;  ///< G: rows of the weight; with headwise gating, the heads.
  GatingType gating = GatingType::Elementwise;

  friend bool operator==(const GateShape&, const GateShape&) = default;
};

/// Half-open range of rows, columns or tokens.
struct IndexRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

/// Rank `rank`'s share of `count` items over `ranks` ranks: [r * count / P, (r + 1) * count / P).
///
/// Errors: InvalidArgument unless 0 <= rank < ranks and count >= 0.
IndexRange even_share(std::int64_t count, int ranks, int rank);

}  // namespace penstock
