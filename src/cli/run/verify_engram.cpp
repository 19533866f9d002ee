#include "cli/run/verify_engram.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "penstock/table/table_view.hpp"

namespace penstock::cli {
namespace {

constexpr double kTolerance = 1e-2;  // relative and absolute: bf16 keys and values are rounded once
constexpr int kBlock = 32;           // columns that share a scale

bool is_row_right(std::span<const std::byte> record, std::span<const BF16> row) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto code = static_cast<std::uint8_t>(record[i]);
    const auto scale = static_cast<std::uint8_t>(record[row.size() + i / kBlock]);
    if (dequantize_element(code, scale) != row[i]) return false;
  }
  return true;
}

/// kv = rows wkv^T in double, rounded to bf16 as the layer does.
std::vector<double> project(const EngramWeights& weights, std::span<const BF16> rows) {
  std::vector<double> kv(weights.wkv.size() / rows.size());
  for (std::size_t output = 0; output < kv.size(); ++output) {
    double sum = 0;
    const BF16* weight = weights.wkv.data() + output * rows.size();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      sum += static_cast<double>(to_float(rows[i])) * static_cast<double>(to_float(weight[i]));
    }
    kv[output] = static_cast<double>(to_float(to_bf16(static_cast<float>(sum))));
  }
  return kv;
}

double gate_of(const EngramWeights& weights, std::size_t copy, std::span<const BF16> hidden,
               std::span<const double> kv) {
  const auto dim = static_cast<std::size_t>(weights.dim);
  double hidden_squares = 0;
  double key_squares = 0;
  double dot = 0;
  for (std::size_t i = copy * dim; i < (copy + 1) * dim; ++i) {
    const auto h = static_cast<double>(to_float(hidden[i]));
    const auto weight = static_cast<double>(to_float(weights.q_weight[i])) *
                        static_cast<double>(to_float(weights.k_weight[i]));
    hidden_squares += h * h;
    key_squares += kv[i] * kv[i];
    dot += h * weight * kv[i];
  }
  const auto width = static_cast<double>(dim);
  const auto eps = static_cast<double>(weights.eps);
  dot /= std::sqrt(hidden_squares / width + eps) * std::sqrt(key_squares / width + eps) *
         std::sqrt(width);
  const double root = std::sqrt(std::max(std::abs(dot), 1e-6));
  return 1.0 / (1.0 + std::exp(dot < 0 ? root : -root));
}

}  // namespace

void check_rows(const RowSource& source, std::span<const std::int32_t> row_ids,
                std::span<const BF16> rows, EngramFindings& findings) {
  const auto width = static_cast<std::size_t>(source.head_dim());
  std::vector<std::byte> record(static_cast<std::size_t>(row_record_bytes(source.head_dim())));
  for (std::size_t i = 0; i < row_ids.size(); ++i) {
    source.read(row_ids[i], record);
    ++findings.rows_checked;
    if (!is_row_right(record, rows.subspan(i * width, width))) ++findings.row_mismatches;
  }
}

void check_token(const EngramWeights& weights, const InjectedToken& token,
                 EngramFindings& findings) {
  ++findings.tokens_checked;
  if (!token.is_active) {
    if (!std::ranges::equal(token.hidden, token.out)) ++findings.token_mismatches;
    return;
  }
  const std::vector<double> kv = project(weights, token.rows);
  const auto dim = static_cast<std::size_t>(weights.dim);
  const auto copies = static_cast<std::size_t>(weights.hc_mult);
  for (std::size_t copy = 0; copy < copies; ++copy) {
    const double gate = gate_of(weights, copy, token.hidden, kv);
    for (std::size_t i = 0; i < dim; ++i) {
      const std::size_t at = copy * dim + i;
      const double expected =
          static_cast<double>(to_float(token.hidden[at])) + gate * kv[copies * dim + i];
      const auto found = static_cast<double>(to_float(token.out[at]));
      // Negated, so that a result that is not a number counts as wrong.
      if (!(std::abs(found - expected) <= kTolerance + kTolerance * std::abs(expected))) {
        ++findings.token_mismatches;
        return;
      }
    }
  }
}

}  // namespace penstock::cli
