#include "penstock/engram/slot_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>

#include "engram/ngram_hasher_state.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

[[noreturn]] void refuse_slots(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "SlotCache" + message);
}

}  // namespace

SlotCache::SlotCache(std::int64_t num_blocks, int block_size) : block_size_(block_size) {
  constexpr std::int64_t kMaxSlots = std::int64_t{1} << 40;
  const bool is_legal = num_blocks >= 1 && block_size >= 1 && num_blocks <= kMaxSlots / block_size;
  if (!is_legal) {
    refuse_slots(
        fmt::format(": found {} blocks of {} slots, needed: at least 1 of each, and at most 2^40 "
                    "slots",
                    num_blocks, block_size));
  }
  values_.resize(static_cast<std::size_t>(num_blocks) * static_cast<std::size_t>(block_size));
}

void SlotCache::write(const NgramHasher& hasher, std::span<const std::int32_t> token_ids,
                      std::span<const std::int64_t> slot_mapping) {
  const detail::NgramHashParameters& parameters = hasher.state().parameters;
  if (token_ids.size() != slot_mapping.size()) {
    refuse_slots(fmt::format("::write: found {} slots, needed: {}, one a token",
                             slot_mapping.size(), token_ids.size()));
  }
  for (std::size_t i = 0; i < token_ids.size(); ++i) {
    const std::int64_t slot = slot_mapping[i];
    if (slot < -1 || slot >= num_slots()) {
      refuse_slots(fmt::format("::write: slot_mapping[{}] is {}, needed: -1 to {}", i, slot,
                               num_slots() - 1));
    }
    if (slot >= 0) {
      detail::check_token_id(parameters, "SlotCache::write: token_ids", token_ids, i);
    }
  }
  for (std::size_t i = 0; i < token_ids.size(); ++i) {
    if (slot_mapping[i] < 0) continue;
    values_[static_cast<std::size_t>(slot_mapping[i])] =
        detail::compressed_id(parameters, token_ids[i]);
  }
}

void SlotCache::hash(const NgramHasher& hasher, const TokenBatch& batch,
                     const BlockTable& block_table, std::span<std::int32_t> out) const {
  const auto requests = std::max<std::ptrdiff_t>(0, std::ssize(batch.query_start) - 1);
  const auto entries = std::ssize(block_table.blocks);
  const bool has_rows = block_table.max_blocks >= 1 && entries % block_table.max_blocks == 0 &&
                        entries / block_table.max_blocks >= requests;
  if (requests > 0 && !has_rows) {
    refuse_slots(
        fmt::format("::hash: the block table has {} entries, needed: at least {} rows of {}",
                    entries, requests, block_table.max_blocks));
  }
  const detail::NgramSlots slots{.values = values_.data(),
                                 .block_table = block_table.blocks.data(),
                                 .num_slots = num_slots(),
                                 .rows = requests,
                                 .max_blocks = block_table.max_blocks,
                                 .block_size = block_size_};
  detail::hash_batch(hasher.state(), batch, slots, out);
}

void SlotCache::reset() {
  std::ranges::fill(values_, 0);
}

}  // namespace penstock
