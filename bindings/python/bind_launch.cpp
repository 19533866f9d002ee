#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.hpp"
#include "penstock/comm/launcher.hpp"
#include "python_call.hpp"

namespace penstock::python {
namespace {

LaunchResult launch(const std::vector<std::string>& argv, int size,
                    const std::map<std::string, std::string>& environment, nb::object on_stderr) {
  LaunchOptions options;
  options.environment.assign(environment.begin(), environment.end());
  if (!on_stderr.is_none()) {
    options.on_stderr = [call = PythonCall(std::move(on_stderr))](int rank, std::string_view line) {
      call([&](const nb::object& function) { function(rank, std::string(line)); });
    };
  }
  const nb::gil_scoped_release release;
  return launch_processes(argv, size, options);
}

}  // namespace

void bind_launch(nb::module_& m) {
  nb::class_<ProcessEnd>(m, "ProcessEnd", "How the process of a rank ended; str() says it.")
      .def_ro("rank", &ProcessEnd::rank, "The rank.")
      .def_ro("exit_code", &ProcessEnd::exit_code, "Meaningless if a signal ended it.")
      .def_ro("signal", &ProcessEnd::signal, "0: it ended by itself.")
      .def_prop_ro("is_failure", &ProcessEnd::is_failure, "An exit code or signal other than 0.")
      .def("__str__", [](const ProcessEnd& self) { return to_string(self); });
  nb::class_<LaunchResult>(m, "LaunchResult", "How the processes of a job ended.")
      .def_ro("ends", &LaunchResult::ends, "One ProcessEnd for each rank.")
      .def_ro("first_failure", &LaunchResult::first_failure,
              "The rank that failed first, or None; the others were ended because of it.");
  m.def("launch_processes", &launch, nb::arg("argv"), nb::arg("size"), nb::kw_only(),
        nb::arg("environment") = std::map<std::string, std::string>(),
        nb::arg("on_stderr") = nb::none(),
        nb::sig("def launch_processes(argv: collections.abc.Sequence[str], size: int, *, "
                "environment: dict[str, str] = {}, on_stderr: collections.abc.Callable[[int, str], "
                "None] | None = None) -> LaunchResult"),
        R"(Runs `size` processes of one program on this machine and waits for all of them.

Each finds its rank by Communicator.join_launch(). Rank 0 has the caller's standard input and
output, the others none. When a rank fails, the others are ended.

Args:
    argv: the program and its arguments; argv[0] is a path, such as sys.executable.
    size: how many.
    environment: more variables for the ranks.
    on_stderr: takes a rank and a line of its messages; None drops them.

Raises:
    InvalidArgument: for an empty argv or a size below 1.
    Error: System if a process cannot be started.)");
}

}  // namespace penstock::python
