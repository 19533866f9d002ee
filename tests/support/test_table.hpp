#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "support/table_oracle.hpp"

// Small tables with every kind of code and scale, and row ids into them.
namespace penstock::test {

inline std::int64_t num_rows(const oracle::WholeTable& table) {
  return std::accumulate(table.head_sizes.begin(), table.head_sizes.end(), std::int64_t{0});
}

inline oracle::WholeTable make_whole_table(int head_dim, std::vector<std::int64_t> head_sizes,
                                           std::uint32_t seed = 7) {
  oracle::WholeTable table{
      .head_dim = head_dim, .head_sizes = std::move(head_sizes), .values = {}, .scales = {}};
  std::mt19937 random(seed);
  const auto values = static_cast<std::size_t>(num_rows(table) * head_dim);
  table.values.resize(values);
  table.scales.resize(values / 32);
  for (auto& code : table.values) code = static_cast<std::uint8_t>(random());
  for (auto& byte : table.scales) byte = static_cast<std::uint8_t>(random());
  return table;
}

/// Row ids [tokens, columns], each within its column's rows.
inline std::vector<std::int32_t> random_ids(const oracle::WholeTable& table, std::int64_t tokens,
                                            std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids;
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::int64_t first = 0;
    for (const std::int64_t rows : table.head_sizes) {
      const auto offset = static_cast<std::int64_t>(random()) % rows;
      ids.push_back(static_cast<std::int32_t>(first + offset));
      first += rows;
    }
  }
  return ids;
}

}  // namespace penstock::test
