#pragma once

#include <chrono>
#include <memory>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

namespace penstock {

/// Owns a stream of a device, for callers that bring none of their own. On the CPU it is empty.
class Stream {
 public:
  /// A stream that does not wait for the legacy default stream, of the highest priority: reads ahead
  /// of need run on streams of the lowest and yield to it.
  ///
  /// Errors: Unsupported for CUDA in a build without it; System.
  static Stream create(Device device);

  /// The stream, for calls that enqueue on it. Valid while this object or a copy of it lives.
  StreamRef ref() const noexcept;

  /// Returns when everything that was enqueued has run.
  void synchronize() const;

 private:
  explicit Stream(Device device) : device_(device) {}

  Device device_;
  std::shared_ptr<CUstream_st> stream_;
};

/// A point in a stream's work, with a time stamp. On the CPU, the time of record().
class Event {
 public:
  /// Errors: Unsupported for CUDA in a build without it; System.
  static Event create(Device device);

  /// Marks the end of what `stream` has enqueued so far.
  void record(StreamRef stream = {});

  /// Waits until the marked point has been reached.
  void synchronize() const;

  /// Time from `earlier` to this event. Waits for both.
  std::chrono::nanoseconds since(const Event& earlier) const;

 private:
  explicit Event(Device device) : device_(device) {}

  Device device_;
  std::shared_ptr<void> event_;
  std::chrono::steady_clock::time_point recorded_;
};

}  // namespace penstock
