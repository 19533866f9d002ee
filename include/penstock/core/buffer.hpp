#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

namespace penstock {

/// Owns a block of plain memory on one device. Move-only; empty after a move.
///
/// Layout:  CPU memory is aligned to 64 bytes, CUDA memory to 256.
/// Threads: different objects are independent; one object must not be used while it is moved.
class Buffer {
 public:
  Buffer() noexcept = default;
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        device_(other.device_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      device_ = other.device_;
    }
    return *this;
  }
  Buffer(const Buffer&) = delete;  // copies of gigabytes are never meant
  Buffer& operator=(const Buffer&) = delete;

  /// A block of `bytes` bytes, contents unspecified; 0 gives an empty buffer.
  ///
  /// Errors: OutOfMemory with the bytes asked for; Unsupported for CUDA in a build without it.
  static Buffer allocate(Device device, std::size_t bytes);

  /// The same, filled with zero bytes.
  static Buffer zeros(Device device, std::size_t bytes);

  /// The same, filled with a copy of `bytes`, which lie in host memory. Waits for the copy.
  static Buffer copy_of(std::span<const std::byte> bytes, Device device);

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  Device device() const noexcept { return device_; }

  /// The memory as `bytes() / sizeof(T)` elements.
  template <typename T>
  std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

  /// Frees the memory; the buffer is empty then. The caller has made sure that nobody uses it.
  void reset() noexcept;

 private:
  Buffer(std::byte* data, std::size_t bytes, Device device) noexcept
      : data_(data),
        bytes_(bytes),
        device_(device) {}

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_{};
};

/// Copies `bytes` from host memory to the start of `buffer`, and waits for it.
///
/// Errors: InvalidArgument if they do not fit.
void copy_bytes(Buffer& buffer, std::span<const std::byte> bytes);

/// Copies `from`, which lies on `device`, to host memory. Waits for what `stream` has enqueued so far.
///
/// Errors: InvalidArgument for different sizes; Unsupported for CUDA in a build without it.
void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from, Device device,
                StreamRef stream = {});

/// The same for the start of a buffer.
///
/// Errors: InvalidArgument if the buffer is smaller than `to`.
void copy_bytes(std::span<std::byte> to, const Buffer& from, StreamRef stream = {});

}  // namespace penstock
