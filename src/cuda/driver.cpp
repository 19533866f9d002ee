#include "cuda/driver.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/check.hpp"

namespace penstock::cuda {
namespace {

/// The driver that offers every call of DriverApi in the form used here.
constexpr unsigned kDriverVersion = 12000;

template <typename Function>
void find(const char* name, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  PENSTOCK_CUDA_CHECK(
      cudaGetDriverEntryPointByVersion(name, &address, kDriverVersion, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    throw Error(
        ErrorCode::Unsupported,
        fmt::format("driver: {} is missing; a driver for CUDA 12.0 or newer is needed", name));
  }
  function = reinterpret_cast<Function>(address);
}

DriverApi load() {
  DriverApi api;
  find("cuMemCreate", api.mem_create);
  find("cuMemRelease", api.mem_release);
  find("cuMemMap", api.mem_map);
  find("cuMemUnmap", api.mem_unmap);
  find("cuMemSetAccess", api.mem_set_access);
  find("cuMemAddressReserve", api.mem_address_reserve);
  find("cuMemAddressFree", api.mem_address_free);
  find("cuMemGetAllocationGranularity", api.mem_granularity);
  find("cuMemExportToShareableHandle", api.mem_export);
  find("cuMemImportFromShareableHandle", api.mem_import);
  find("cuMemGetAllocationPropertiesFromHandle", api.mem_properties);
  find("cuDeviceGetAttribute", api.device_attribute);
  find("cuGetErrorString", api.error_string);
  return api;
}

}  // namespace

const DriverApi& driver() {
  static const DriverApi api = load();
  return api;
}

void check_driver(CUresult status, const char* call, CodeLocation location) {
  if (status == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (driver().error_string(status, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown";
  const ErrorCode code =
      status == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::OutOfMemory : ErrorCode::System;
  throw Error(code, fmt::format("{}: {} ({})", call, text, static_cast<int>(status)), location);
}

}  // namespace penstock::cuda
