#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "gate/peer_memory_cuda.hpp"
#include "gate/peer_rows.hpp"
#include "penstock/core/buffer.hpp"

namespace penstock::detail {

/// A rank's rows in device memory. Shared rows begin as far into a page as they do in the whole
/// weight, so that their pages fit between those of the other ranks' rows.
class CudaRows final : public PeerRows {
 public:
  /// Rows that nobody else needs.
  explicit CudaRows(Buffer own) : alone_(std::move(own)) {}

  /// `lead_bytes` of every rank: how far into its memory its rows begin.
  CudaRows(std::unique_ptr<PeerMemory> memory, std::vector<std::size_t> lead_bytes, int rank,
           std::size_t own_bytes)
      : memory_(std::move(memory)),
        lead_bytes_(std::move(lead_bytes)),
        rank_(rank),
        own_bytes_(own_bytes) {}

  std::span<const BF16> own() const override {
    return memory_ ? std::span(of(rank_), own_bytes_ / sizeof(BF16)) : alone_.as<const BF16>();
  }
  std::size_t resident_bytes() const override {
    return memory_ ? memory_->own().bytes() : alone_.bytes();
  }
  bool are_readable() const override { return memory_ != nullptr; }
  const BF16* of(int rank) const override {
    return reinterpret_cast<const BF16*>(memory_->of(rank) +
                                         lead_bytes_[static_cast<std::size_t>(rank)]);
  }

  /// The pages of this rank's rows. Only where are_readable().
  const cuda::VirtualMemory& memory() const { return memory_->own(); }

 private:
  std::unique_ptr<PeerMemory> memory_;
  std::vector<std::size_t> lead_bytes_;
  int rank_ = 0;
  std::size_t own_bytes_ = 0;
  Buffer alone_;
};

}  // namespace penstock::detail
