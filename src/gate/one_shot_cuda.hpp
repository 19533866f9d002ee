#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "gate/identical_gather.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/gate/strategy.hpp"

namespace penstock::detail {

inline constexpr int kOneShotRanks = 8;      ///< Most ranks of one gather.
inline constexpr int kOneShotTokens = 128;   ///< Most tokens of one gather.
inline constexpr int kOneShotThreads = 512;  ///< Of a block.
inline constexpr std::uint64_t kOneShotDeadlineNs = 30'000'000'000ULL;

/// What one_shot_kernel gets. Strides in elements.
struct OneShotArguments {
  int rank = 0;
  int ranks = 1;
  std::int64_t tokens = 0;
  std::int64_t width = 0;  ///< Columns of attn and out.
  // Arrays are of all ranks, and plain ones, because the kernel indexes them.
  // NOLINTBEGIN(modernize-avoid-c-arrays)
  std::int64_t first_row[kOneShotRanks] = {};
  std::int64_t rows[kOneShotRanks] = {};  ///< Multiples of 8.
  const BF16* z = nullptr;                ///< [tokens, rows[rank]]
  const BF16* attn = nullptr;             ///< [tokens, width]
  BF16* out = nullptr;                    ///< [tokens, width]
  BF16* staging[kOneShotRanks] = {};      ///< [2, ranks, rank_stride]
  std::int64_t half_stride = 0;
  std::int64_t rank_stride = 0;
  std::uint32_t* flags[kOneShotRanks] = {};  ///< [ranks], last rounds heard of.
  // NOLINTEND(modernize-avoid-c-arrays)
  std::uint32_t* round = nullptr;        ///< This rank's last finished round.
  std::uint32_t* arrived = nullptr;      ///< 0 between launches.
  std::uint32_t* departed = nullptr;     ///< 0 between launches.
  volatile int* missing_rank = nullptr;  ///< Host memory: a rank that never came, plus one.
};

/// Makes the gather of a group whose gates have up to `largest.output_size` rows; null where the
/// ranks cannot reach each other's memory, or are too many.
///
/// Collective: over `comm`.
std::unique_ptr<IdenticalGather> make_one_shot_gather(Communicator& comm, const GateShape& largest,
                                                      Device device);

}  // namespace penstock::detail
