#pragma once

#include <cstdint>
#include <vector>

#include "penstock/checkpoint/model_config.hpp"

namespace penstock {

/// The numbers of the n-gram hash: everything that follows from the configuration.
struct HashLayout {
  /// Errors: InvalidArgument for a configuration whose primes, rows or products would not fit
  ///         (row ids are int32; compressed id times multiplier is below 2^63).
  explicit HashLayout(EngramConfig config_in);

  EngramConfig config;
  /// [layers][columns], order-major: column (n - 2) * heads + head.
  std::vector<std::vector<std::int64_t>> primes;
  std::vector<std::vector<std::int64_t>> offsets;      ///< Exclusive prefix sums of primes.
  std::vector<std::vector<std::int64_t>> multipliers;  ///< [layers][N], odd.
  std::vector<std::int64_t> row_counts;                ///< Sum of a layer's primes.

  int num_layers() const { return static_cast<int>(primes.size()); }
  int num_columns() const { return config.num_columns(); }
};

/// `numpy.random.default_rng(seed).integers(0, high, size=count, dtype=int64)`, number for number.
///
/// Errors: InvalidArgument for high < 1.
std::vector<std::int64_t> numpy_integers(std::uint64_t seed, std::int64_t high, int count);

}  // namespace penstock
