#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "gate/agreement.hpp"
#include "gate/peer_memory_cuda.hpp"
#include "gate/peer_rows.hpp"
#include "penstock/core/buffer.hpp"

namespace penstock::detail {
namespace {

std::shared_ptr<Buffer> copy_slice(Device device, const WeightSlice& slice) {
  const auto row_bytes = static_cast<std::size_t>(slice.columns) * sizeof(BF16);
  const auto rows = static_cast<std::size_t>(slice.rows);
  // At least something, so that there is an address to share.
  auto buffer = std::make_shared<Buffer>(
      Buffer::allocate(device, std::max<std::size_t>(1, rows * row_bytes)));
  if (rows == 0) return buffer;
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaMemcpy2D(buffer->data(), row_bytes, slice.data,
                                   static_cast<std::size_t>(slice.stride) * sizeof(BF16), row_bytes,
                                   rows, cudaMemcpyDefault));
  // From pageable memory the call may return when the bytes are staged, not when they have arrived.
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return buffer;
}

class CudaRows final : public PeerRows {
 public:
  CudaRows(std::shared_ptr<Buffer> own, std::unique_ptr<PeerMemory> peers)
      : own_(std::move(own)),
        peers_(std::move(peers)) {}

  std::span<const BF16> own() const override { return own_->as<BF16>(); }
  std::size_t resident_bytes() const override { return own_->bytes(); }
  bool are_readable() const override { return peers_ != nullptr; }
  const BF16* of(int rank) const override {
    return reinterpret_cast<const BF16*>(peers_->of(rank));
  }

 private:
  std::shared_ptr<Buffer> own_;
  std::unique_ptr<PeerMemory> peers_;
};

}  // namespace

std::unique_ptr<PeerRows> keep_rows_cuda(Device device, const WeightSlice& slice) {
  return std::make_unique<CudaRows>(copy_slice(device, slice), nullptr);
}

std::unique_ptr<PeerRows> share_rows_cuda(Communicator* comm, Device device,
                                          const WeightSlice& slice) {
  std::shared_ptr<Buffer> own;
  agree(comm, "GateLinear", [&]() -> AgreedFields {
    own = copy_slice(device, slice);
    return {};
  });
  std::unique_ptr<PeerMemory> peers;
  if (comm != nullptr && comm->size() > 1) {
    peers = PeerMemory::share(*comm, own);
    comm->barrier();  // all slices are complete and their addresses copied
  }
  return std::make_unique<CudaRows>(std::move(own), std::move(peers));
}

}  // namespace penstock::detail
