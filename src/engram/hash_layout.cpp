#include "penstock/engram/hash_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "penstock/checkpoint/bucket_primes.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

constexpr std::int64_t kMaxRows = std::int64_t{1} << 31;  // row ids are int32

void check_config(const EngramConfig& config) {
  expects(!config.layer_ids.empty(), "HashLayout: found no layer ids, needed: at least one");
  for (const int layer_id : config.layer_ids) {
    expects(layer_id >= 0, fmt::format("HashLayout: found layer id {}, needed: >= 0", layer_id));
  }
  expects(config.max_ngram_size >= 2,
          fmt::format("HashLayout: found max_ngram_size {}, needed: at least 2",
                      config.max_ngram_size));
  expects(config.num_heads >= 1,
          fmt::format("HashLayout: found {} heads, needed: at least 1", config.num_heads));
  expects(config.vocab_size >= 1 && config.vocab_size <= kMaxRows,
          fmt::format("HashLayout: found vocab_size {}, needed: 1 to 2^31", config.vocab_size));
  expects(config.compressed_vocab_size >= 1,
          fmt::format("HashLayout: found compressed_vocab_size {}, needed: at least 1",
                      config.compressed_vocab_size));
  expects(config.pad_token_id >= 0,
          fmt::format("HashLayout: found pad_token_id {}, needed: >= 0", config.pad_token_id));
  // Before the prime search, so that an absurd size is refused in no time: n distinct primes sum up
  // to more than n * n / 2, and each is at least vocab_size.
  const std::int64_t columns = (std::int64_t{config.max_ngram_size} - 1) * config.num_heads;
  const std::int64_t least_prime = std::max(config.vocab_size, columns / 2);
  expects(columns <= kMaxRows / least_prime,
          fmt::format("HashLayout: {} columns of at least {} rows each, needed: at most 2^31 rows "
                      "in a layer",
                      columns, least_prime));
}

/// Odd numbers whose product with any compressed id stays below 2^63.
std::vector<std::int64_t> layer_multipliers(const EngramConfig& config, int layer_id) {
  constexpr std::uint64_t kSeedStep = 10007;
  const std::int64_t bound = std::max<std::int64_t>(
      1, std::numeric_limits<std::int64_t>::max() / config.compressed_vocab_size / 2);
  auto values = numpy_integers(kSeedStep * static_cast<std::uint64_t>(layer_id), bound,
                               config.max_ngram_size);
  for (auto& value : values) value = 2 * value + 1;
  return values;
}

}  // namespace

HashLayout::HashLayout(EngramConfig config_in) : config(std::move(config_in)) {
  check_config(config);
  primes = bucket_primes(config);
  for (std::size_t layer = 0; layer < primes.size(); ++layer) {
    std::int64_t rows = 0;
    offsets.emplace_back();
    for (const std::int64_t prime : primes[layer]) {
      offsets.back().push_back(rows);
      rows += prime;
    }
    expects(rows <= kMaxRows, fmt::format("HashLayout: layer {} has {} rows, needed: at most 2^31",
                                          config.layer_ids[layer], rows));
    row_counts.push_back(rows);
    multipliers.push_back(layer_multipliers(config, config.layer_ids[layer]));
  }
}

}  // namespace penstock
