#pragma once

#include <string>

namespace penstock {

/// What kind of processor works on memory.
enum class DeviceKind { Cpu, Cuda };

/// Where memory lies and work runs.
struct Device {
  DeviceKind kind = DeviceKind::Cpu;
  int index = 0;  ///< CUDA device ordinal; 0 for the CPU.

  friend constexpr bool operator==(Device, Device) = default;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index) { return {DeviceKind::Cuda, index}; }
};

/// "cpu" or "cuda:<index>".
std::string to_string(Device device);

/// Number of CUDA devices that this process can use; 0 in a build without CUDA or without a driver.
int cuda_device_count();

}  // namespace penstock
