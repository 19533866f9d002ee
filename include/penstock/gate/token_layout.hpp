#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/gate/strategy.hpp"

namespace penstock {

/// Where the tokens of one prefill request live under prefill context parallelism: the request is
/// cut into 2P chunks of ceil(tokens / 2P), the last ones short or empty, and rank r holds chunks r
/// and 2P - 1 - r, in this order. That balances causal attention.
class PcpLayout {
 public:
  /// Errors: InvalidArgument for tokens < 0 or ranks < 1.
  PcpLayout(std::int64_t tokens, int ranks);

  std::int64_t tokens() const noexcept { return tokens_; }
  int ranks() const noexcept { return ranks_; }

  /// Request positions of a rank's two chunks; the second follows the first in the rank's rows.
  std::array<IndexRange, 2> chunks_of(int rank) const;

  /// Tokens on each rank.
  std::vector<std::int64_t> counts() const;

  /// Request position of every row of `rank`, in row order.
  std::vector<std::int64_t> positions_of(int rank) const;

  /// A token's home.
  struct Place {
    int rank = 0;
    std::int64_t row = 0;

    friend bool operator==(Place, Place) = default;
  };

  /// The inverse of positions_of. Errors: InvalidArgument for a position outside the request.
  Place place_of(std::int64_t position) const;

 private:
  IndexRange chunk(std::int64_t index) const;

  std::int64_t tokens_;
  std::int64_t chunk_tokens_ = 0;
  int ranks_;
};

}  // namespace penstock
