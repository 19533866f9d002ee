#include "cuda/host_allocation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/driver.hpp"

namespace penstock::cuda {
namespace {

constexpr CUmemAllocationHandleType kHostHandleType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// An attribute of a device; 0 where this driver does not know it.
int attribute_or_zero(CUdevice_attribute name, Device device) {
  int value = 0;
  if (driver().device_attribute(&value, name, device.index) != CUDA_SUCCESS) return 0;
  return value;
}

CUmemLocation host_location(int numa_node) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  location.id = numa_node;
  return location;
}

CUmemAllocationProp host_properties(int numa_node) {
  CUmemAllocationProp result{};
  result.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  result.location = host_location(numa_node);
  result.requestedHandleTypes = kHostHandleType;
  return result;
}

}  // namespace

std::string shared_host_memory_refusal(Device device) {
  const DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaFree(nullptr));  // makes the context, which the driver's calls count on
  const auto lacks = [&](CUdevice_attribute name) { return attribute_or_zero(name, device) == 0; };
  if (lacks(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
    return fmt::format("{} cannot map host memory of a NUMA node", to_string(device));
  }
  if (lacks(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    return fmt::format("{} cannot share memory by file descriptor", to_string(device));
  }
  return {};
}

int host_numa_node(Device device) {
  return std::max(0, attribute_or_zero(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device));
}

std::size_t host_granularity(Device device) {
  const CUmemAllocationProp wanted = host_properties(host_numa_node(device));
  std::size_t granularity = 0;
  check_driver(
      driver().mem_granularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  return granularity;
}

HostAllocation::HostAllocation(HostAllocation&& other) noexcept
    : handle_(std::exchange(other.handle_, 0)) {}

HostAllocation& HostAllocation::operator=(HostAllocation&& other) noexcept {
  if (this != &other) {
    reset();
    handle_ = std::exchange(other.handle_, 0);
  }
  return *this;
}

void HostAllocation::reset() noexcept {
  // At exit the driver may be gone already and refuse; then there is nothing left to release.
  if (handle_ != 0) static_cast<void>(driver().mem_release(std::exchange(handle_, 0)));
}

HostAllocation HostAllocation::create(Device device, int numa_node, std::size_t bytes) {
  const DeviceGuard guard(device);
  const CUmemAllocationProp wanted = host_properties(numa_node);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult status = driver().mem_create(&handle, bytes, &wanted, 0);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    throw Error(ErrorCode::OutOfMemory,
                fmt::format("cuMemCreate: {} bytes are not to be had on NUMA node {} of the host",
                            bytes, numa_node));
  }
  check_driver(status, "cuMemCreate of host memory");
  return HostAllocation(handle);
}

HostAllocation HostAllocation::import(int fd, Device device) {
  const DeviceGuard guard(device);
  CUmemGenericAllocationHandle handle = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes the descriptor in place of a pointer
  void* descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
  check_driver(driver().mem_import(&handle, descriptor, kHostHandleType),
               "cuMemImportFromShareableHandle of host memory");
  return HostAllocation(handle);
}

int HostAllocation::export_fd() const {
  int fd = -1;
  check_driver(driver().mem_export(&fd, handle_, kHostHandleType, 0),
               "cuMemExportToShareableHandle of host memory");
  return fd;
}

CUmemLocation HostAllocation::location() const {
  CUmemAllocationProp found{};
  check_driver(driver().mem_properties(&found, handle_), "cuMemGetAllocationPropertiesFromHandle");
  return found.location;
}

}  // namespace penstock::cuda
