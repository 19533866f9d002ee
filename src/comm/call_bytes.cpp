#include "comm/call_bytes.hpp"

#include <algorithm>
#include <cstring>

#include "core/build_config.hpp"
#include "cuda/stream_memory.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock::detail {
namespace {

/// Whether memory of `device` is CUDA's, in a build that can have some. Others never ask.
[[maybe_unused]] bool is_cuda(Device device) {
  return build::has_cuda && device.kind == DeviceKind::Cuda;
}

void copy_rows_cpu(const StridedCopy& copy) {
  constexpr std::int64_t kRowsPerRange = 64;
  parallel_for(copy.rows, kRowsPerRange, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::memcpy(copy.to + row * copy.to_stride, copy.from + row * copy.from_stride,
                  static_cast<std::size_t>(copy.row_bytes));
    }
  });
}

}  // namespace

CallBytes::CallBytes(Device device, std::size_t bytes, StreamRef stream)
    : device_(device),
      stream_(stream) {
  if (bytes == 0) return;
  if constexpr (build::has_cuda) {
    if (is_cuda(device)) {
      bytes_ = {cuda::allocate_async(device, bytes, stream), bytes};
      return;
    }
  }
  host_.resize(bytes);
  bytes_ = host_;
}

CallBytes::~CallBytes() {
  if constexpr (build::has_cuda) {
    if (is_cuda(device_) && !bytes_.empty()) cuda::free_async(device_, bytes_.data(), stream_);
  }
}

void copy_rows(const StridedCopy& copy, Device device, StreamRef stream) {
  if (copy.rows == 0 || copy.row_bytes == 0) return;
  if constexpr (build::has_cuda) {
    if (is_cuda(device)) {
      cuda::copy_rows_async(device, copy.from, copy.from_stride, copy.to, copy.to_stride,
                            copy.row_bytes, copy.rows, stream);
      return;
    }
  }
  static_cast<void>(stream);
  copy_rows_cpu(copy);
}

void fill_bytes(std::span<std::byte> bytes, std::byte value, Device device, StreamRef stream) {
  if constexpr (build::has_cuda) {
    if (is_cuda(device)) {
      cuda::fill_async(device, bytes.data(), value, bytes.size(), stream);
      return;
    }
  }
  static_cast<void>(stream);
  std::ranges::fill(bytes, value);
}

}  // namespace penstock::detail
