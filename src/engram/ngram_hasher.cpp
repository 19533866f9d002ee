#include "penstock/engram/ngram_hasher.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "engram/ngram_hash_math.hpp"
#include "engram/ngram_hasher_state.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock {
namespace {

using detail::NgramBatch;
using detail::NgramHashParameters;
using detail::NgramSlots;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "NgramHasher::hash: " + message);
}

void check_shapes(const NgramHasher::State& state, const TokenBatch& batch,
                  std::span<const std::int32_t> out) {
  const auto tokens = std::ssize(batch.token_ids);
  const auto row = state.layout.num_layers() * std::int64_t{state.layout.num_columns()};
  if (std::ssize(batch.positions) != tokens) {
    refuse(
        fmt::format("found {} positions, needed: {}, one a token", batch.positions.size(), tokens));
  }
  if (tokens > 0 && batch.query_start.size() < 2) {
    refuse(fmt::format(
        "found {} tokens and no request, needed: query_start with at least 2 entries", tokens));
  }
  if (std::ssize(out) != tokens * row) {
    refuse(fmt::format("out has {} entries, needed: {} tokens times {}", out.size(), tokens, row));
  }
}

void check_lookback_shape(const NgramHasher::State& state, const TokenBatch& batch) {
  const auto requests = std::max<std::ptrdiff_t>(0, std::ssize(batch.query_start) - 1);
  const auto entries = requests * state.layout.config.lookback_depth();
  if (std::ssize(batch.lookback) != entries) {
    refuse(fmt::format("lookback has {} entries, needed: {} for {} requests", batch.lookback.size(),
                       entries, requests));
  }
}

void check_boundaries(const TokenBatch& batch) {
  const auto tokens = std::ssize(batch.token_ids);
  std::int64_t least = 0;
  for (std::size_t i = 0; i < batch.query_start.size(); ++i) {
    const std::int64_t start = batch.query_start[i];
    const std::int64_t most = i == 0 ? 0 : tokens;
    if (start < least || start > most) {
      refuse(fmt::format("query_start[{}] is {}, needed: {} to {}", i, start, least, most));
    }
    least = start;
  }
}

void check_positions(const TokenBatch& batch) {
  for (std::size_t request = 0; request + 1 < batch.query_start.size(); ++request) {
    const auto begin = static_cast<std::size_t>(batch.query_start[request]);
    const auto end = static_cast<std::size_t>(batch.query_start[request + 1]);
    if (begin == end) continue;
    if (batch.positions[begin] < 0) {
      refuse(fmt::format("positions[{}] is {}, needed: >= 0", begin, batch.positions[begin]));
    }
    for (std::size_t i = begin + 1; i < end; ++i) {
      if (batch.positions[i] > 0 && batch.positions[i] - 1 == batch.positions[i - 1]) continue;
      refuse(
          fmt::format("positions[{}] is {} after {}, needed: consecutive positions inside "
                      "request {}",
                      i, batch.positions[i], batch.positions[i - 1], request));
    }
  }
}

/// Rows of tokens [begin, end).
void hash_range(const NgramHashParameters& parameters, const NgramBatch& batch,
                const NgramSlots& slots, std::pair<std::int64_t, std::int64_t> range,
                std::int32_t* out) {
  const int columns = parameters.orders * parameters.heads;
  std::vector<std::int32_t> history(static_cast<std::size_t>(parameters.orders) + 1);
  std::int64_t request = detail::request_of_token(batch, range.first);
  std::int32_t* rows = out + range.first * parameters.layers * columns;
  for (std::int64_t token = range.first; token < range.second; ++token) {
    while (request + 1 < batch.requests && batch.query_start[request + 1] <= token) ++request;
    detail::HistoryWalk walk(parameters, batch, slots, token, request);
    for (int shift = 0; shift <= parameters.orders; ++shift) {
      history[static_cast<std::size_t>(shift)] = walk.next(shift);
    }
    for (int layer = 0; layer < parameters.layers; ++layer) {
      detail::rows_of_history(parameters, layer, history.data(), rows);
      rows += columns;
    }
  }
}

}  // namespace

NgramHasher::State::State(HashLayout layout_in, const TokenMap& map,
                          std::optional<std::int32_t> dead_token_id_in)
    : layout(std::move(layout_in)),
      dead_token_id(dead_token_id_in),
      token_map(map.ids().begin(), map.ids().end()) {
  const EngramConfig& config = layout.config;
  expects(map.size() <= config.compressed_vocab_size,
          fmt::format("NgramHasher: the token map has {} compressed ids, needed: at most "
                      "compressed_vocab_size {}",
                      map.size(), config.compressed_vocab_size));
  expects(config.pad_token_id < std::ssize(token_map),
          fmt::format("NgramHasher: pad_token_id is {}, needed: a token of the map of {}",
                      config.pad_token_id, token_map.size()));
  expects(dead_token_id.value_or(0) >= 0,
          fmt::format("NgramHasher: dead_token_id is {}, needed: >= 0", dead_token_id.value_or(0)));
  for (std::size_t layer = 0; layer < layout.primes.size(); ++layer) {
    for (const std::int64_t prime : layout.primes[layer]) {
      primes.push_back(static_cast<std::uint32_t>(prime));
      reciprocals.push_back(detail::modulo_reciprocal(primes.back()));
    }
    for (const auto offset : layout.offsets[layer]) {
      offsets.push_back(static_cast<std::uint32_t>(offset));
    }
    for (const auto multiplier : layout.multipliers[layer]) {
      multipliers.push_back(static_cast<std::uint64_t>(multiplier));
    }
  }
  parameters = {.layers = layout.num_layers(),
                .orders = config.lookback_depth(),
                .heads = config.num_heads,
                .pad_id = token_map[static_cast<std::size_t>(config.pad_token_id)],
                .dead_token = dead_token_id ? *dead_token_id : detail::kNoDeadToken,
                .num_tokens = static_cast<std::int32_t>(token_map.size()),
                .token_map = token_map.data(),
                .primes = primes.data(),
                .reciprocals = reciprocals.data(),
                .offsets = offsets.data(),
                .multipliers = multipliers.data()};
}

namespace detail {

void check_token_id(const NgramHashParameters& parameters, const char* what,
                    std::span<const std::int32_t> ids, std::size_t index,
                    std::optional<std::int32_t> also_legal) {
  if (is_hashable(parameters, ids[index]) || ids[index] == also_legal) return;
  std::string needed = fmt::format("0 <= id < {}", parameters.num_tokens);
  if (also_legal) needed += fmt::format(", or {} for unknown", *also_legal);
  if (parameters.dead_token != kNoDeadToken) {
    needed += fmt::format(", or the dead token {}", parameters.dead_token);
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}[{}] is {}, needed: {}", what, index, ids[index], needed));
}

void hash_batch(const NgramHasher::State& state, const TokenBatch& batch, const NgramSlots& slots,
                std::span<std::int32_t> out) {
  check_shapes(state, batch, out);
  check_boundaries(batch);
  check_positions(batch);
  if (slots.values == nullptr || !batch.lookback.empty()) check_lookback_shape(state, batch);
  for (std::size_t i = 0; i < batch.token_ids.size(); ++i) {
    check_token_id(state.parameters, "NgramHasher::hash: token_ids", batch.token_ids, i);
  }
  for (std::size_t i = 0; i < batch.lookback.size(); ++i) {
    check_token_id(state.parameters, "NgramHasher::hash: lookback", batch.lookback, i, -1);
  }
  const NgramBatch view{.token_ids = batch.token_ids.data(),
                        .positions = batch.positions.data(),
                        .query_start = batch.query_start.data(),
                        .lookback = batch.lookback.empty() ? nullptr : batch.lookback.data(),
                        .tokens = std::ssize(batch.token_ids),
                        .requests = std::ssize(batch.query_start) - 1};
  constexpr std::int64_t kGrain = 256;  // about 10 us of work
  parallel_for(view.tokens, kGrain, [&](std::int64_t begin, std::int64_t end) {
    hash_range(state.parameters, view, slots, {begin, end}, out.data());
  });
}

}  // namespace detail

NgramHasher::NgramHasher(HashLayout layout, const TokenMap& token_map,
                         std::optional<std::int32_t> dead_token_id)
    : state_(std::make_shared<const State>(std::move(layout), token_map, dead_token_id)) {}

const HashLayout& NgramHasher::layout() const {
  return state_->layout;
}

std::optional<std::int32_t> NgramHasher::dead_token_id() const {
  return state_->dead_token_id;
}

void NgramHasher::hash(const TokenBatch& batch, std::span<std::int32_t> out) const {
  detail::hash_batch(*state_, batch, {}, out);
}

std::vector<std::int32_t> NgramHasher::operator()(const TokenBatch& batch) const {
  const auto row = static_cast<std::size_t>(layout().num_layers()) *
                   static_cast<std::size_t>(layout().num_columns());
  std::vector<std::int32_t> out(batch.token_ids.size() * row);
  hash(batch, out);
  return out;
}

}  // namespace penstock
