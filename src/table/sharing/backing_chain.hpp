#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/table/host_backing.hpp"

// Which backings `auto` tries and in which order: pure functions of what was found and measured.
namespace penstock::detail {

/// From this size on a backing is chosen by more than its name: what it saves is time per GiB.
inline constexpr std::int64_t kLeastBytesToChoose = std::int64_t{256} << 20;

/// What the creator knows before it measures.
struct BackingFacts {
  std::int64_t table_bytes = 0;
  bool is_read_by_gpu = false;
  std::string cumem_refusal = {};  ///< Why cuMem cannot be had; empty if it can.
  std::int64_t free_huge_page_bytes = 0;
};

/// A backing that may be tried, or why not.
struct BackingCandidate {
  HostBacking backing = HostBacking::Memfd;
  std::string refusal;  ///< Empty if it can be had.
};

/// All backings in the order of the chain: cuMem, hugetlb, memfd. Memfd can always be had.
std::vector<BackingCandidate> backing_candidates(const BackingFacts& facts);

/// What a probe of a backing measured.
struct BackingFigures {
  HostBacking backing = HostBacking::Memfd;
  double start_seconds_per_gib = 0;  ///< To make it, take its pages, and map it for the reader.
  double rows_per_second = 0;        ///< Random rows read by the GPU; 0: not measured.
};

/// The backings, best first. Of those whose reads are at most 10 % slower than the fastest's, the one
/// that starts soonest comes first; then the same among the others. Equals stay in their order.
std::vector<HostBacking> order_backings(std::span<const BackingFigures> figures);

/// "memfd 0.25 s/GiB, 48.1 M rows/s".
std::string describe(const BackingFigures& figures);

/// Memory that is made and handed over in pieces: all are of this size, the last may be smaller. The
/// same for every rank, and small enough that making one can be waited for, but no more pieces than
/// one message carries descriptors.
std::size_t piece_bytes(std::size_t total_bytes);

}  // namespace penstock::detail
