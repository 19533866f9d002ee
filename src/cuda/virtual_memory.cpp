#include "cuda/virtual_memory.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "core/round_up.hpp"
#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/driver.hpp"

namespace penstock::cuda {
namespace {

constexpr CUmemAllocationHandleType kHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

CUmemAllocationProp properties(Device device) {
  CUmemAllocationProp result{};
  result.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  result.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  result.location.id = device.index;
  result.requestedHandleTypes = kHandleType;
  return result;
}

void check_shareable(Device device) {
  int is_supported = 0;
  check_driver(driver().device_attribute(
                   &is_supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                   device.index),
               "cuDeviceGetAttribute");
  if (is_supported != 0) return;
  throw Error(ErrorCode::Unsupported,
              fmt::format("{} cannot share memory by file descriptor", to_string(device)));
}

std::size_t rounded_up(Device device, std::size_t bytes) {
  return detail::round_up(bytes, granularity_of(device));
}

}  // namespace

std::size_t granularity_of(Device device) {
  const CUmemAllocationProp wanted = properties(device);
  std::size_t granularity = 0;
  check_driver(
      driver().mem_granularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  return granularity;
}

CUmemAccessDesc access_of(Device device) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device.index;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

VirtualMemory::VirtualMemory(VirtualMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      handle_(std::exchange(other.handle_, 0)) {}

VirtualMemory& VirtualMemory::operator=(VirtualMemory&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
    handle_ = std::exchange(other.handle_, 0);
  }
  return *this;
}

void VirtualMemory::reset() noexcept {
  if (mapped_bytes_ == 0) return;
  const DriverApi& api = driver();  // loaded before: there is memory
  const auto address = reinterpret_cast<CUdeviceptr>(data_);
  // At exit the driver may be gone already and refuse; then there is nothing left to release.
  if (data_ != nullptr) {
    static_cast<void>(api.mem_unmap(address, mapped_bytes_));
    static_cast<void>(api.mem_address_free(address, mapped_bytes_));
  }
  if (handle_ != 0) static_cast<void>(api.mem_release(handle_));
  data_ = nullptr;
  mapped_bytes_ = 0;
  handle_ = 0;
}

VirtualMemory VirtualMemory::map(unsigned long long handle, Device device, std::size_t bytes,
                                 bool is_writable) {
  VirtualMemory memory;
  memory.handle_ = handle;
  memory.mapped_bytes_ = bytes;  // from here on reset() releases the handle
  const DriverApi& api = driver();
  CUdeviceptr address = 0;
  check_driver(api.mem_address_reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  if (const CUresult status = api.mem_map(address, bytes, 0, handle, 0); status != CUDA_SUCCESS) {
    static_cast<void>(api.mem_address_free(address, bytes));
    check_driver(status, "cuMemMap");
  }
  memory.data_ = reinterpret_cast<std::byte*>(address);
  const CUmemAccessDesc access = access_of(device);
  const CUresult status = api.mem_set_access(address, bytes, &access, 1);
  if (status != CUDA_SUCCESS && !is_writable) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("{} has no access to the GPU that holds another rank's memory "
                            "(driver status {})",
                            to_string(device), static_cast<int>(status)));
  }
  check_driver(status, "cuMemSetAccess");
  return memory;
}

VirtualMemory VirtualMemory::create(Device device, std::size_t bytes) {
  const DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaFree(nullptr));  // makes the context, which the driver's calls count on
  check_shareable(device);
  const std::size_t size = rounded_up(device, bytes);
  const CUmemAllocationProp wanted = properties(device);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult status = driver().mem_create(&handle, size, &wanted, 0);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    throw Error(ErrorCode::OutOfMemory, fmt::format("cuMemCreate: {} bytes are not to be had on {}",
                                                    size, to_string(device)));
  }
  check_driver(status, "cuMemCreate");
  return map(handle, device, size, true);
}

VirtualMemory VirtualMemory::import(int fd, Device device, std::size_t bytes) {
  const DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaFree(nullptr));  // makes the context, which the driver's calls count on
  CUmemGenericAllocationHandle handle = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes the descriptor in place of a pointer
  void* descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  check_driver(driver().mem_import(&handle, descriptor, kHandleType),
               "cuMemImportFromShareableHandle");
  return map(handle, device, rounded_up(device, bytes), false);
}

int VirtualMemory::export_fd() const {
  int fd = -1;
  check_driver(driver().mem_export(&fd, handle_, kHandleType, 0), "cuMemExportToShareableHandle");
  return fd;
}

}  // namespace penstock::cuda
