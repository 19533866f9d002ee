#pragma once

#include <algorithm>
#include <vector>

namespace penstock::cli {

/// What is told of several measurements of one thing.
struct Spread {
  double median = 0;
  double least = 0;
  double quartiles = 0;  ///< From the first quarter to the third.
};

inline Spread spread_of(std::vector<double> times) {
  std::ranges::sort(times);
  const std::size_t count = times.size();
  return {times[count / 2], times.front(), times[count * 3 / 4] - times[count / 4]};
}

}  // namespace penstock::cli
