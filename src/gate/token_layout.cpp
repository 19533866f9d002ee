#include "penstock/gate/token_layout.hpp"

#include <algorithm>

#include "penstock/core/error.hpp"

namespace penstock {

PcpLayout::PcpLayout(std::int64_t tokens, int ranks) : tokens_(tokens), ranks_(ranks) {
  expects(tokens >= 0, "PcpLayout: tokens is negative");
  expects(ranks >= 1, "PcpLayout: ranks is below 1");
  chunk_tokens_ = (tokens + 2LL * ranks - 1) / (2LL * ranks);
}

IndexRange PcpLayout::chunk(std::int64_t index) const {
  return {std::min(tokens_, index * chunk_tokens_), std::min(tokens_, (index + 1) * chunk_tokens_)};
}

std::array<IndexRange, 2> PcpLayout::chunks_of(int rank) const {
  expects(rank >= 0 && rank < ranks_, "PcpLayout: rank lies outside the group");
  return {chunk(rank), chunk(2LL * ranks_ - 1 - rank)};
}

std::vector<std::int64_t> PcpLayout::counts() const {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto [first, second] = chunks_of(rank);
    counts.push_back(first.size() + second.size());
  }
  return counts;
}

std::vector<std::int64_t> PcpLayout::positions_of(int rank) const {
  std::vector<std::int64_t> positions;
  for (const IndexRange& range : chunks_of(rank)) {
    for (std::int64_t position = range.begin; position < range.end; ++position) {
      positions.push_back(position);
    }
  }
  return positions;
}

PcpLayout::Place PcpLayout::place_of(std::int64_t position) const {
  expects(position >= 0 && position < tokens_, "PcpLayout: position lies outside the request");
  const std::int64_t index = position / chunk_tokens_;
  const std::int64_t offset = position - index * chunk_tokens_;
  if (index < ranks_) return {static_cast<int>(index), offset};
  const int rank = static_cast<int>(2LL * ranks_ - 1 - index);
  return {rank, chunk(rank).size() + offset};
}

}  // namespace penstock
