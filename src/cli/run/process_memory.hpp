#pragma once

#include <cstdint>

namespace penstock::cli {

/// Proportional set size of this process in bytes: pages shared with others count by their share,
/// so that sums over processes count every page once. 0 where the kernel does not tell.
std::int64_t proportional_set_bytes();

}  // namespace penstock::cli
