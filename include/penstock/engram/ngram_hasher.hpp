#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/engram/hash_layout.hpp"
#include "penstock/engram/token_map.hpp"

namespace penstock {

/// The tokens of one step: requests one after another.
struct TokenBatch {
  std::span<const std::int32_t> token_ids;    ///< [T]
  std::span<const std::int32_t> query_start;  ///< [Q + 1], not falling, from 0; the last may be < T
  std::span<const std::int64_t> positions;    ///< [T], consecutive inside a request.
  /// [Q, N - 1], newest first: column j is the token at position (first of the chunk) - 1 - j;
  /// -1 where unknown or before the start.
  std::span<const std::int32_t> lookback;
};

/// The token id that stands at every position of an image in V4.1; takes part in no n-gram.
inline constexpr std::int32_t kImageTokenId = 129264;

/// Turns tokens into row ids for every Engram layer. Exact integer arithmetic; any chunking of a
/// sequence gives the same ids.
///
/// Threads: const members are safe from any thread.
class NgramHasher {
 public:
  /// `dead_token_id` is a raw token id that takes part in no n-gram and may lie outside the map.
  ///
  /// Errors: InvalidArgument if the map has more compressed ids than the layout's compressed
  ///         vocabulary, or the pad token lies outside the map.
  NgramHasher(HashLayout layout, const TokenMap& token_map,
              std::optional<std::int32_t> dead_token_id = std::nullopt);

  /// Shapes: out [T, layers, columns].
  /// Device: CPU. Range: padding tokens past the last request hash as if they belonged to it.
  /// Errors: InvalidArgument for shapes that do not fit, or a token id that is neither dead nor in
  ///         the map; nothing is written then.
  void hash(const TokenBatch& batch, std::span<std::int32_t> out) const;

  /// The same, allocated.
  std::vector<std::int32_t> operator()(const TokenBatch& batch) const;

  const HashLayout& layout() const;
  std::optional<std::int32_t> dead_token_id() const;

  /// The flat arrays that hash() works with, for the library's other hashers.
  struct State;
  const State& state() const { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace penstock
