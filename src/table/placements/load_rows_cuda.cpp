#include "table/placements/load_rows_cuda.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/unique_handle.hpp"
#include "penstock/table/table_view.hpp"
#include "table/lifecycle/load_rows.hpp"

namespace penstock::detail {
namespace {

// Long enough that starting a copy costs nothing beside it, short enough to stop soon.
constexpr std::int64_t kBounceBytes = std::int64_t{64} << 20;

using PinnedBytes = cuda::UniqueHandle<void*, cudaFreeHost>;

/// Pinned memory on its way to the GPU. Its destructor waits for the copy under way.
class BounceBuffer {
 public:
  BounceBuffer() : copied_(cuda::make_event()) {
    void* data = nullptr;
    PENSTOCK_CUDA_CHECK(cudaHostAlloc(&data, kBounceBytes, cudaHostAllocDefault));
    data_ = PinnedBytes(data);
  }
  ~BounceBuffer() { static_cast<void>(cudaEventSynchronize(copied_.get())); }
  BounceBuffer(const BounceBuffer&) = delete;
  BounceBuffer& operator=(const BounceBuffer&) = delete;

  /// The memory, once the last copy out of it has ended.
  std::byte* wait() {
    PENSTOCK_CUDA_CHECK(cudaEventSynchronize(copied_.get()));  // at once if never recorded
    return static_cast<std::byte*>(data_.get());
  }

  void copy_to(std::byte* out, std::int64_t bytes, cudaStream_t stream) {
    PENSTOCK_CUDA_CHECK(cudaMemcpyAsync(out, data_.get(), static_cast<std::size_t>(bytes),
                                        cudaMemcpyHostToDevice, stream));
    PENSTOCK_CUDA_CHECK(cudaEventRecord(copied_.get(), stream));
  }

 private:
  PinnedBytes data_;
  cuda::UniqueEvent copied_;
};

}  // namespace

void load_rows_cuda(const RowSource& rows, RowRange range, std::byte* out, Device device,
                    const StopFlag& stop) {
  if (range.begin == range.end) return;
  const cuda::DeviceGuard guard(device);
  const std::int64_t record_bytes = row_record_bytes(rows.head_dim());
  const std::int64_t rows_at_once = kBounceBytes / record_bytes;
  const cuda::UniqueStream stream = cuda::make_background_stream();
  std::array<BounceBuffer, 2> buffers;
  std::size_t turn = 0;
  for (std::int64_t first = range.begin; first < range.end; first += rows_at_once) {
    const RowRange piece{.begin = first, .end = std::min(first + rows_at_once, range.end)};
    BounceBuffer& buffer = buffers[turn++ % buffers.size()];
    load_rows(rows, piece, buffer.wait(), stop);
    buffer.copy_to(out + (first - range.begin) * record_bytes,
                   (piece.end - piece.begin) * record_bytes, stream.get());
  }
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
}

}  // namespace penstock::detail
