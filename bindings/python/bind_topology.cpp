#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "penstock/topology/edp.hpp"
#include "penstock/topology/parallel_config.hpp"

namespace penstock::python {
namespace {

std::tuple<int, std::vector<std::vector<int>>> edp_groups_of(const std::vector<int>& node_of_rank,
                                                             int dp, int tp, int pp, int pcp,
                                                             int external_dp) {
  ParallelConfig config;
  config.external_dp = external_dp;
  config.dp = dp;
  config.pp = pp;
  config.pcp = pcp;
  config.tp = tp;
  EdpGroups found = edp_groups(node_of_rank, config);
  return {found.size, std::move(found.groups)};
}

}  // namespace

void bind_topology(nb::module_& m) {
  m.def("edp_groups", &edp_groups_of, nb::arg("node_of_rank"), nb::arg("dp"), nb::arg("tp"),
        nb::arg("pp") = 1, nb::arg("pcp") = 1, nb::arg("external_dp") = 1,
        R"(Groups of data-parallel replicas on one node that keep one copy of a table together.

Args:
    node_of_rank: one number for each rank; equal numbers mean the same node. Ranks count
        through external_dp x dp x pp x pcp x tp, tp fastest.

Returns:
    (size, groups): ranks of a group, and the groups as lists of ranks by ascending dp index.
    Size 1 means that there are no groups: the list is empty then.

Raises:
    InvalidArgument: for a size below 1, or another number of ranks than their product.)");
}

}  // namespace penstock::python
