#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/core/dtype.hpp"
#include "penstock/engram/engram_weights.hpp"
#include "penstock/table/row_source.hpp"

namespace penstock::cli {

/// What --verify found in one layer.
struct EngramFindings {
  std::int64_t ids_checked = 0;
  std::int64_t id_mismatches = 0;
  std::int64_t rows_checked = 0;
  std::int64_t row_mismatches = 0;
  std::int64_t tokens_checked = 0;  ///< Tokens whose injected hidden was recomputed.
  std::int64_t token_mismatches = 0;

  bool is_clean() const {
    return id_mismatches == 0 && row_mismatches == 0 && token_mismatches == 0;
  }
};

/// Compares rows with a plain reading of the source, bit for bit.
///
/// Shapes: row_ids [n], rows [n, head_dim].
void check_rows(const RowSource& source, std::span<const std::int32_t> row_ids,
                std::span<const BF16> rows, EngramFindings& findings);

/// One token of a layer: what went in and what came out.
struct InjectedToken {
  std::span<const BF16> rows;    ///< [row_width]
  std::span<const BF16> hidden;  ///< [hc, dim]
  std::span<const BF16> out;     ///< [hc, dim]
  bool is_active = true;
};

/// Recomputes projection and gate of a token in double and compares within rtol = atol = 1e-2; a
/// token that is not active must have kept its bits.
void check_token(const EngramWeights& weights, const InjectedToken& token,
                 EngramFindings& findings);

}  // namespace penstock::cli
