#include "penstock/core/buffer.hpp"

#include <cstring>
#include <new>
#include <string>

#include "core/buffer_cuda.hpp"
#include "core/build_config.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

constexpr std::align_val_t kCpuAlignment{64};

[[noreturn]] void refuse_cuda_memory(const char* function) {
  throw Error(ErrorCode::Unsupported, std::string(function) + ": built without PENSTOCK_WITH_CUDA");
}

}  // namespace

Buffer Buffer::allocate(Device device, std::size_t bytes) {
  if (bytes == 0) return {nullptr, 0, device};
  switch (device.kind) {
    case DeviceKind::Cpu: {
      void* data = ::operator new(bytes, kCpuAlignment, std::nothrow);
      if (data == nullptr) {
        throw Error(ErrorCode::OutOfMemory,
                    "Buffer: " + std::to_string(bytes) + " bytes of host memory are not to be had");
      }
      return {static_cast<std::byte*>(data), bytes, device};
    }
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) {
        return {detail::cuda_allocate(device, bytes), bytes, device};
      }
      refuse_cuda_memory("Buffer");
  }
  throw Error(ErrorCode::Internal, "Buffer: not a DeviceKind");
}

Buffer Buffer::zeros(Device device, std::size_t bytes) {
  Buffer buffer = allocate(device, bytes);
  if (bytes == 0) return buffer;
  switch (device.kind) {
    case DeviceKind::Cpu: std::memset(buffer.data_, 0, bytes); break;
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) detail::cuda_zero(device, buffer.data_, bytes);
      break;
  }
  return buffer;
}

Buffer Buffer::copy_of(std::span<const std::byte> bytes, Device device) {
  Buffer buffer = allocate(device, bytes.size());
  copy_bytes(buffer, bytes);
  return buffer;
}

void Buffer::reset() noexcept {
  if (data_ == nullptr) return;
  switch (device_.kind) {
    case DeviceKind::Cpu: ::operator delete(data_, kCpuAlignment); break;
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) detail::cuda_free(device_, data_);
      break;
  }
  data_ = nullptr;
  bytes_ = 0;
}

void copy_bytes(Buffer& buffer, std::span<const std::byte> bytes) {
  expects(bytes.size() <= buffer.bytes(), "copy_bytes: the buffer is smaller than the bytes");
  if (bytes.empty()) return;
  switch (buffer.device().kind) {
    case DeviceKind::Cpu: std::memcpy(buffer.data(), bytes.data(), bytes.size()); break;
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) detail::cuda_copy_in(buffer.device(), buffer.data(), bytes);
      break;
  }
}

void copy_bytes(std::span<std::byte> to, std::span<const std::byte> from, Device device,
                StreamRef stream) {
  expects(to.size() == from.size(), "copy_bytes: source and destination differ in size");
  if (to.empty()) return;
  switch (device.kind) {
    case DeviceKind::Cpu: std::memcpy(to.data(), from.data(), from.size()); break;
    case DeviceKind::Cuda:
      if constexpr (build::has_cuda) {
        detail::cuda_copy_out(device, to, from.data(), stream);
        break;
      }
      static_cast<void>(stream);
      refuse_cuda_memory("copy_bytes");
  }
}

void copy_bytes(std::span<std::byte> to, const Buffer& from, StreamRef stream) {
  expects(to.size() <= from.bytes(), "copy_bytes: the buffer is smaller than the destination");
  copy_bytes(to, from.as<const std::byte>().first(to.size()), from.device(), stream);
}

}  // namespace penstock
