// In the place of mpi_group.cpp where MPI is not built in.

#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock {

std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& /*options*/) {
  throw Error(ErrorCode::Unsupported, "make_mpi_communicator: built without PENSTOCK_WITH_MPI");
}

}  // namespace penstock
