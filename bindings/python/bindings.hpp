#pragma once

#include <nanobind/nanobind.h>

#include <filesystem>
#include <string>
#include <vector>

#include "penstock/checkpoint/model_config.hpp"

// One function for each subsystem adds its part of the face to the module.
namespace penstock::python {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_topology(nb::module_& m);
void bind_comm(nb::module_& m);
void bind_launch(nb::module_& m);
void bind_table(nb::module_& m);
void bind_engram(nb::module_& m);
void bind_layer(nb::module_& m);
void bind_gate(nb::module_& m);
void bind_plan(nb::module_& m);

}  // namespace penstock::python
