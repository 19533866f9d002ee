#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "penstock/engram/hash_layout.hpp"

namespace penstock::testing_support {

/// A token map that leaves every id as it is.
inline std::vector<std::int32_t> identity_ids(std::int32_t size) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(size));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

/// Row ids of one whole sequence from position 0, from the definition: no chunks, no windows.
/// Returns [tokens, layers, columns].
inline std::vector<std::int32_t> sequence_rows(const HashLayout& layout,
                                               const std::vector<std::int32_t>& token_map,
                                               std::optional<std::int32_t> dead_token,
                                               const std::vector<std::int32_t>& tokens) {
  const auto& config = layout.config;
  const std::int64_t pad = token_map.at(static_cast<std::size_t>(config.pad_token_id));
  std::vector<std::int32_t> rows;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    std::vector<std::int64_t> history;
    bool blocked = false;
    for (std::size_t back = 0; back < static_cast<std::size_t>(config.max_ngram_size); ++back) {
      blocked = blocked || back > t || tokens[t - back] == dead_token;
      history.push_back(blocked ? pad : token_map.at(static_cast<std::size_t>(tokens[t - back])));
    }
    for (std::size_t layer = 0; layer < layout.primes.size(); ++layer) {
      for (std::size_t column = 0; column < layout.primes[layer].size(); ++column) {
        const std::size_t order = 2 + column / static_cast<std::size_t>(config.num_heads);
        std::int64_t hash = 0;
        for (std::size_t i = 0; i < order; ++i) hash ^= history[i] * layout.multipliers[layer][i];
        rows.push_back(static_cast<std::int32_t>(hash % layout.primes[layer][column] +
                                                 layout.offsets[layer][column]));
      }
    }
  }
  return rows;
}

}  // namespace penstock::testing_support
