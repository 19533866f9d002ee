#pragma once

#include <cstddef>
#include <span>

#include "penstock/core/buffer.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

namespace penstock::cli {

/// Elements on a device that grow and never shrink.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(Device device) : device_(device) {}

  /// Room for `count` elements, contents unspecified.
  std::span<T> resize(std::size_t count) {
    if (buffer_.bytes() < count * sizeof(T)) {
      buffer_ = Buffer::allocate(device_, count * sizeof(T));
    }
    count_ = count;
    return view();
  }

  /// Copies `host` to the device and waits for it.
  std::span<T> upload(std::span<const T> host) {
    resize(host.size());
    copy_bytes(buffer_, std::as_bytes(host));
    return view();
  }

  std::span<T> view() const { return buffer_.template as<T>().first(count_); }

 private:
  Device device_;
  Buffer buffer_;
  std::size_t count_ = 0;
};

}  // namespace penstock::cli
