#include "gate/peer_rows_cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "gate/agreement.hpp"
#include "penstock/core/error.hpp"
#include "penstock/gate/strategy.hpp"

namespace penstock::detail {
namespace {

std::size_t row_bytes(const WeightSlice& slice) {
  return static_cast<std::size_t>(slice.columns) * sizeof(BF16);
}

void copy_slice(Device device, const WeightSlice& slice, std::byte* to) {
  if (slice.rows == 0) return;
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaMemcpy2D(
      to, row_bytes(slice), slice.data, static_cast<std::size_t>(slice.stride) * sizeof(BF16),
      row_bytes(slice), static_cast<std::size_t>(slice.rows), cudaMemcpyDefault));
  // From pageable memory the call may return when the bytes are staged, not when they have arrived.
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

}  // namespace

std::unique_ptr<PeerRows> keep_rows_cuda(Device device, const WeightSlice& slice) {
  Buffer own = Buffer::allocate(device, static_cast<std::size_t>(slice.rows) * row_bytes(slice));
  copy_slice(device, slice, own.data());
  return std::make_unique<CudaRows>(std::move(own));
}

std::unique_ptr<PeerRows> share_rows_cuda(Communicator& comm, Device device,
                                          const WeightSlice& slice, std::int64_t total_rows) {
  // Equal on all ranks, whose devices are alike.
  const std::size_t page = cuda::granularity_of(device);
  std::vector<std::size_t> leads;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const IndexRange rows = even_share(total_rows, comm.size(), rank);
    leads.push_back(static_cast<std::size_t>(rows.begin) * row_bytes(slice) % page);
  }
  const std::size_t lead = leads[static_cast<std::size_t>(comm.rank())];
  const std::size_t bytes = static_cast<std::size_t>(slice.rows) * row_bytes(slice);
  // At least something, so that there is memory to share.
  auto memory = PeerMemory::create(comm, device, std::max<std::size_t>(1, lead + bytes));
  std::unique_ptr<PeerRows> shared;
  agree(&comm, "GateLinear", [&]() -> AgreedFields {
    if (!memory) {
      shared = keep_rows_cuda(device, slice);
    } else {
      copy_slice(device, slice, memory->of(comm.rank()) + lead);
      shared = std::make_unique<CudaRows>(std::move(memory), leads, comm.rank(), bytes);
    }
    return {{"bytes of a page", std::to_string(page)}};
  });
  return shared;
}

}  // namespace penstock::detail
