#include "cuda/address_range.hpp"

#include <utility>

#include "cuda/device_guard.hpp"
#include "cuda/driver.hpp"

namespace penstock::cuda {
namespace {

CUdeviceptr address_of(const std::byte* data) {
  return reinterpret_cast<CUdeviceptr>(data);
}

}  // namespace

AddressRange::AddressRange(AddressRange&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      parts_(std::exchange(other.parts_, {})) {}

AddressRange& AddressRange::operator=(AddressRange&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = other.device_;
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    parts_ = std::exchange(other.parts_, {});
  }
  return *this;
}

AddressRange AddressRange::reserve(Device device, std::size_t bytes) {
  const DeviceGuard guard(device);
  CUdeviceptr address = 0;
  check_driver(driver().mem_address_reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  AddressRange range;
  range.device_ = device;
  range.data_ = reinterpret_cast<std::byte*>(address);
  range.bytes_ = bytes;
  return range;
}

void AddressRange::map(std::size_t offset, const VirtualMemory& memory, std::size_t bytes) {
  if (bytes == 0) return;
  place(offset, memory.handle(), bytes);
  const DeviceGuard guard(device_);
  const CUmemAccessDesc access = access_of(device_);
  check_driver(driver().mem_set_access(address_of(data_ + offset), bytes, &access, 1),
               "cuMemSetAccess");
}

void AddressRange::place(std::size_t offset, unsigned long long handle, std::size_t bytes) {
  const DeviceGuard guard(device_);
  check_driver(driver().mem_map(address_of(data_ + offset), bytes, 0, handle, 0), "cuMemMap");
  parts_.push_back({offset, bytes});
}

bool AddressRange::allow(std::size_t offset, std::size_t bytes, const CUmemLocation& location,
                         CUmemAccess_flags flags) {
  const DeviceGuard guard(device_);
  const CUmemAccessDesc access{.location = location, .flags = flags};
  return driver().mem_set_access(address_of(data_ + offset), bytes, &access, 1) == CUDA_SUCCESS;
}

void AddressRange::reset() noexcept {
  if (data_ == nullptr) return;
  const DriverApi& api = driver();  // loaded before: there are addresses
  // At exit the driver may be gone already and refuse; then there is nothing left to release.
  for (const Part& part : parts_) {
    static_cast<void>(api.mem_unmap(address_of(data_ + part.offset), part.bytes));
  }
  static_cast<void>(api.mem_address_free(address_of(data_), bytes_));
  data_ = nullptr;
  bytes_ = 0;
  parts_.clear();
}

}  // namespace penstock::cuda
