#pragma once

namespace penstock::detail {

/// Dependencies of a CUDA prefetch that a test can leave out, to show that each one is needed.
struct PrefetchFaults {
  bool skips_producer = false;  ///< The read does not wait for the ids.
  bool skips_consumer = false;  ///< wait() does not wait for the rows.
  bool skips_reuse = false;     ///< The read does not wait until its slot has been consumed.
  bool skips_order = false;     ///< A read in the order of the table does not wait for the order.
};

/// For tests: the faults of the whole process. No build option, variable or file reaches them.
PrefetchFaults& prefetch_faults();

}  // namespace penstock::detail
