#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engram/ngram_hash_math.hpp"
#include "penstock/engram/ngram_hasher.hpp"

namespace penstock {

/// What a hasher needs at every step, as flat arrays; `parameters` points into them.
struct NgramHasher::State {
  State(HashLayout layout_in, const TokenMap& token_map,
        std::optional<std::int32_t> dead_token_id_in);
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  HashLayout layout;
  std::optional<std::int32_t> dead_token_id;
  std::vector<std::int32_t> token_map;
  std::vector<std::uint32_t> primes;       ///< [layers, columns]
  std::vector<std::uint64_t> reciprocals;  ///< [layers, columns]
  std::vector<std::uint32_t> offsets;      ///< [layers, columns]
  std::vector<std::uint64_t> multipliers;  ///< [layers, N]
  detail::NgramHashParameters parameters;
};

namespace detail {

/// Throws InvalidArgument unless ids[index] is hashable or `also_legal`. `what` names the array.
void check_token_id(const NgramHashParameters& parameters, const char* what,
                    std::span<const std::int32_t> ids, std::size_t index,
                    std::optional<std::int32_t> also_legal = std::nullopt);

/// NgramHasher::hash, with a slot cache behind the window. With one, an empty lookback is legal and
/// knows nothing.
void hash_batch(const NgramHasher::State& state, const TokenBatch& batch, const NgramSlots& slots,
                std::span<std::int32_t> out);

}  // namespace detail
}  // namespace penstock
