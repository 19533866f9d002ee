#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "penstock/plan/contract.hpp"

namespace penstock::python {
namespace {

nb::list as_dicts(const std::vector<Violation>& violations) {
  nb::list out;
  for (const Violation& violation : violations) {
    nb::dict entry;
    entry["rule"] = violation.rule;
    entry["found"] = violation.found;
    entry["needs"] = violation.needs;
    entry["message"] = violation.message;
    out.append(entry);
  }
  return out;
}

nb::list check(nb::handle deployment) {
  if (PyDict_Check(deployment.ptr()) != 0) {
    const nb::object text = nb::module_::import_("json").attr("dumps")(deployment);
    return as_dicts(check_deployment(nb::cast<std::string>(text), "deployment"));
  }
  return as_dicts(check_deployment(nb::cast<std::filesystem::path>(deployment)));
}

}  // namespace

void bind_plan(nb::module_& m) {
  m.def("check", &check, nb::arg("deployment"),
        nb::sig("def check(deployment: dict[str, typing.Any] | str | os.PathLike[str]) -> "
                "list[dict[str, str]]"),
        R"(Judges a deployment before it is started.

Args:
    deployment: the document as a dict, or the path of its JSON file. The variable
        PENSTOCK_GATE_PCP_SHARD sets gate.pcp_shard where the document does not.

Returns:
    One dict for every violated rule, with the keys "rule", "found", "needs" and "message";
    an empty list if the deployment may be started.

Raises:
    InvalidArgument: for an unknown key, a wrong type or a value out of range.
    Error: CorruptFile for text that is not JSON or has a key twice; NotFound.)");
}

}  // namespace penstock::python
