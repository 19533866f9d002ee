#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "arrays.hpp"
#include "bindings.hpp"
#include "penstock/core/version.hpp"

NB_MODULE(_penstock, m) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  m.doc() = "The compiled half of penstock.";
  python::prepare_arrays();
  m.def("version", [] { return std::string(version()); }, "major.minor.patch");
  m.def("build_description", &build_description,
        "One line: the version and what this build holds (CUDA, NCCL, MPI, oneDNN).");
  python::bind_errors(m);
  python::bind_topology(m);
  python::bind_comm(m);
  python::bind_launch(m);
  python::bind_table(m);
  python::bind_engram(m);
  python::bind_layer(m);
  python::bind_gate(m);
  python::bind_plan(m);
}
