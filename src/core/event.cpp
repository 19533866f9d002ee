#include "penstock/core/event.hpp"

#include "core/build_config.hpp"
#include "core/event_cuda.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

[[noreturn]] void refuse_cuda(const char* function) {
  throw Error(ErrorCode::Unsupported, std::string(function) + ": built without PENSTOCK_WITH_CUDA");
}

}  // namespace

Stream Stream::create(Device device) {
  Stream stream(device);
  if (device.kind == DeviceKind::Cpu) return stream;
  if constexpr (build::has_cuda) {
    stream.stream_ = detail::cuda_make_stream(device);
    return stream;
  }
  refuse_cuda("Stream");
}

StreamRef Stream::ref() const noexcept {
  return StreamRef(stream_.get());
}

void Stream::synchronize() const {
  if constexpr (build::has_cuda) {
    if (device_.kind == DeviceKind::Cuda) detail::cuda_synchronize(device_, ref());
  }
}

Event Event::create(Device device) {
  Event event(device);
  if (device.kind == DeviceKind::Cpu) return event;
  if constexpr (build::has_cuda) {
    event.event_ = detail::cuda_make_timed_event(device);
    return event;
  }
  refuse_cuda("Event");
}

void Event::record(StreamRef stream) {
  if constexpr (build::has_cuda) {
    if (event_) return detail::cuda_record(device_, event_.get(), stream);
  }
  static_cast<void>(stream);
  recorded_ = std::chrono::steady_clock::now();
}

void Event::synchronize() const {
  if constexpr (build::has_cuda) {
    if (event_) detail::cuda_synchronize_event(device_, event_.get());
  }
}

std::chrono::nanoseconds Event::since(const Event& earlier) const {
  if constexpr (build::has_cuda) {
    if (event_) {
      synchronize();
      const double ms = detail::cuda_elapsed_ms(device_, earlier.event_.get(), event_.get());
      return std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::duration<double, std::milli>(ms));
    }
  }
  return recorded_ - earlier.recorded_;
}

}  // namespace penstock
