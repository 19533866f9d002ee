#pragma once

#include <cstdint>
#include <functional>

namespace penstock {

/// Threads that parallel_for may use, the caller's included; at least 1. Starts as the number of
/// processors that this process may run on.
int parallel_threads();

/// Sets parallel_threads() for the calling thread only, so that ranks that are threads of one
/// process can share its processors.
///
/// Errors: InvalidArgument below 1.
void set_parallel_threads(int threads);

/// Calls `body(begin, end)` for consecutive ranges that cover [0, count) once, on several threads,
/// and returns when all are done. Ranges hold at least `grain` items, but for the last.
///
/// Threads: may be called from any thread, and from inside a body (then it runs in place).
/// Errors:  the first exception that a body throws, after all bodies have ended.
void parallel_for(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& body);

}  // namespace penstock
