#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/unique_handle.hpp"
#include "gate/side_stream.hpp"

namespace penstock::detail {
namespace {

class CudaSideStream final : public SideStream {
 public:
  explicit CudaSideStream(Device device) : device_(device) {
    const cuda::DeviceGuard guard(device);
    // The few blocks of an exchange go before the many of a product that has begun.
    stream_ = cuda::make_background_stream();
    fork_ = cuda::make_event();
    for (auto& mark : marks_) mark = cuda::make_event();
  }

  StreamRef ref() const override { return StreamRef(stream_.get()); }

  void follow(StreamRef stream) override {
    const cuda::DeviceGuard guard(device_);
    PENSTOCK_CUDA_CHECK(cudaEventRecord(fork_.get(), stream.get()));
    PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), fork_.get(), 0));
  }

  void mark(int slot) override {
    const cuda::DeviceGuard guard(device_);
    PENSTOCK_CUDA_CHECK(cudaEventRecord(event_of(slot), stream_.get()));
  }

  void make_wait(StreamRef stream, int slot) override {
    const cuda::DeviceGuard guard(device_);
    PENSTOCK_CUDA_CHECK(cudaStreamWaitEvent(stream.get(), event_of(slot), 0));
  }

 private:
  cudaEvent_t event_of(int slot) const { return marks_[static_cast<std::size_t>(slot)].get(); }

  Device device_;
  cuda::UniqueStream stream_;
  cuda::UniqueEvent fork_;
  std::array<cuda::UniqueEvent, 2> marks_;
};

}  // namespace

std::unique_ptr<SideStream> make_side_stream_cuda(Device device) {
  return std::make_unique<CudaSideStream>(device);
}

}  // namespace penstock::detail
