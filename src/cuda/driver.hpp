#pragma once

#include <cuda.h>

#include "penstock/core/error.hpp"

namespace penstock::cuda {

/// The calls of the driver that the runtime has no twin for. Found through the runtime, so that
/// nothing links against libcuda and programs start on machines without a driver.
struct DriverApi {
  decltype(&::cuMemCreate) mem_create = nullptr;
  decltype(&::cuMemRelease) mem_release = nullptr;
  decltype(&::cuMemMap) mem_map = nullptr;
  decltype(&::cuMemUnmap) mem_unmap = nullptr;
  decltype(&::cuMemSetAccess) mem_set_access = nullptr;
  decltype(&::cuMemAddressReserve) mem_address_reserve = nullptr;
  decltype(&::cuMemAddressFree) mem_address_free = nullptr;
  decltype(&::cuMemGetAllocationGranularity) mem_granularity = nullptr;
  decltype(&::cuMemExportToShareableHandle) mem_export = nullptr;
  decltype(&::cuMemImportFromShareableHandle) mem_import = nullptr;
  decltype(&::cuMemGetAllocationPropertiesFromHandle) mem_properties = nullptr;
  decltype(&::cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&::cuGetErrorString) error_string = nullptr;
};

/// Threads: safe.
/// Errors:  Unsupported if the driver is missing or lacks one of the calls.
const DriverApi& driver();

/// Throws OutOfMemory or System if `status` is an error.
void check_driver(CUresult status, const char* call,
                  CodeLocation location = CodeLocation::current());

}  // namespace penstock::cuda
