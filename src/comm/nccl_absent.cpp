#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock {

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& /*host*/, Device /*device*/,
                                                     const NcclOptions& /*options*/) {
  throw Error(ErrorCode::Unsupported,
              "make_nccl_communicator: built without PENSTOCK_WITH_NCCL; turn it on");
}

}  // namespace penstock
