#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

// What the exchange does with bytes, wherever a communicator's buffers lie.
namespace penstock::detail {

/// Bytes of one call. On CUDA they are there in the order of `stream`, from its pool of memory.
class CallBytes {
 public:
  /// Errors: OutOfMemory.
  CallBytes(Device device, std::size_t bytes, StreamRef stream);
  ~CallBytes();
  CallBytes(const CallBytes&) = delete;
  CallBytes& operator=(const CallBytes&) = delete;

  std::span<std::byte> span() const { return bytes_; }

 private:
  Device device_;
  StreamRef stream_;
  std::vector<std::byte> host_;
  std::span<std::byte> bytes_;
};

/// A copy of rows that lie at other distances afterwards. In bytes.
struct StridedCopy {
  const std::byte* from = nullptr;
  std::int64_t from_stride = 0;
  std::byte* to = nullptr;
  std::int64_t to_stride = 0;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;
};

/// Async: on CUDA ordered on `stream`.
void copy_rows(const StridedCopy& copy, Device device, StreamRef stream);
void fill_bytes(std::span<std::byte> bytes, std::byte value, Device device, StreamRef stream);

}  // namespace penstock::detail
