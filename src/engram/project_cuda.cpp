#include "engram/project_cuda.hpp"

#include "cuda/matmul_cuda.hpp"
#include "penstock/core/buffer.hpp"

namespace penstock::detail {
namespace {

class CublasProjection : public DeviceProjection {
 public:
  explicit CublasProjection(Device device)
      : matmul_(device),
        workspace_(Buffer::allocate(device, cuda::Matmul::kWorkspaceBytes)) {}

  void run(const MatmulShape& shape, const BF16* rows, const BF16* weight, BF16* out,
           StreamRef stream) override {
    cuda::MatmulSizes sizes;
    sizes.m = shape.m;
    sizes.n = shape.n;
    sizes.k = shape.k;
    sizes.x_stride = shape.k;
    sizes.w_stride = shape.k;
    sizes.out_stride = shape.n;
    matmul_.run(sizes, rows, weight, out, workspace_.as<std::byte>(), stream);
  }

 private:
  cuda::Matmul matmul_;
  Buffer workspace_;
};

}  // namespace

std::unique_ptr<DeviceProjection> make_device_projection(Device device) {
  return std::make_unique<CublasProjection>(device);
}

}  // namespace penstock::detail
