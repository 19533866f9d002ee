#pragma once

#include <nanobind/nanobind.h>

#include "penstock/core/device.hpp"

namespace penstock::python {

/// The device that a caller means: "cpu", "cuda", "cuda:<index>" or a torch.device. None is the
/// current CUDA device if there is one, else the CPU.
///
/// Errors: InvalidArgument for another text.
Device device_from(nanobind::handle device);

}  // namespace penstock::python
