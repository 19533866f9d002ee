#pragma once

#include <memory>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

namespace penstock::detail {

/// A stream beside the caller's, for work that may run at the same time. Order between the two is
/// made by these calls alone.
///
/// Async:   nothing waits on the host. In a capture of the caller's stream, follow() takes the side
///          stream into it, and make_wait() for the last mark brings it back.
/// Threads: one rank's calls, one at a time.
class SideStream {
 public:
  SideStream() = default;
  virtual ~SideStream() = default;
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  virtual StreamRef ref() const = 0;

  /// What the side stream is given from now on starts after all that `stream` was given so far.
  virtual void follow(StreamRef stream) = 0;

  /// Remembers all that the side stream was given so far, in place of `slot`'s last mark.
  ///
  /// Range: slot is 0 or 1.
  virtual void mark(int slot) = 0;

  /// What `stream` is given from now on starts after what the slot's mark remembers.
  virtual void make_wait(StreamRef stream, int slot) = 0;
};

/// In a build with CUDA: a stream of the lowest priority.
std::unique_ptr<SideStream> make_side_stream_cuda(Device device);

}  // namespace penstock::detail
