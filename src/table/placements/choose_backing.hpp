#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/core/device.hpp"
#include "penstock/table/host_backing.hpp"
#include "table/sharing/stop_flag.hpp"

namespace penstock::detail {

/// The backings to try, best first, and how it came to that.
struct BackingChoice {
  std::vector<HostBacking> order;
  std::string reason;
};

/// What `asked` means for a table of `table_bytes` that `device` reads. Called by the creator; the
/// others hear of it.
///
/// A named backing stands alone. For Auto: a table below 256 MiB is a memfd at once; on the CPU
/// hugetlb goes before memfd if the free huge pages hold the whole table; for a GPU every backing
/// that can be had is tried with 256 MiB.
///
/// Errors: PeerFailed once stopped. A probe that fails only takes its backing out of the chain.
/// Cost:   at most three times 256 MiB, made, pinned, read and freed one after the other; under a
///         second.
BackingChoice choose_backing(HostBacking asked, Device device, std::int64_t table_bytes,
                             const StopFlag& stop);

}  // namespace penstock::detail
