// NCCL under the suite of all engines. Its buffers lie on GPUs; an adapter moves the suite's bytes
// there and back.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator_contract.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/event.hpp"

namespace penstock {
namespace {

class HostBytes final : public Communicator {
 public:
  /// `nccl` of `host`, which it lives on.
  HostBytes(std::shared_ptr<Communicator> host, std::unique_ptr<Communicator> nccl)
      : host_(std::move(host)),
        nccl_(std::move(nccl)),
        stream_(Stream::create(nccl_->device())) {}

  int rank() const noexcept override { return nccl_->rank(); }
  int size() const noexcept override { return nccl_->size(); }
  std::string_view engine() const noexcept override { return nccl_->engine(); }

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out, StreamRef) override {
    const Pair pair(*this, in, out);
    nccl_->all_gather(pair.in(), pair.out(), stream_.ref());
    pair.read(out);
  }
  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, std::size_t block_bytes,
                  StreamRef) override {
    const Pair pair(*this, in, out);
    nccl_->all_to_all(pair.in(), pair.out(), block_bytes, stream_.ref());
    pair.read(out);
  }
  void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                    std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                    StreamRef) override {
    const Pair pair(*this, in, out);
    nccl_->all_to_all_v(pair.in(), in_bytes, pair.out(), out_bytes, stream_.ref());
    pair.read(out);
  }
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                      StreamRef) override {
    const Pair pair(*this, in, out);
    nccl_->reduce_scatter(pair.in(), pair.out(), dtype, stream_.ref());
    pair.read(out);
  }
  void broadcast(std::span<std::byte> data, int root, StreamRef) override {
    const Pair pair(*this, {}, data);
    nccl_->broadcast(pair.out(), root, stream_.ref());
    pair.read(data);
  }
  void barrier() override { nccl_->barrier(); }
  std::vector<std::vector<std::byte>> all_gather_object(std::span<const std::byte> mine) override {
    return nccl_->all_gather_object(mine);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = nccl_->split(color, key);
    return part ? std::make_unique<HostBytes>(host_, std::move(part)) : nullptr;
  }
  void abort(std::string_view cause) noexcept override { nccl_->abort(cause); }

 private:
  /// The two buffers of a call on the GPU.
  class Pair {
   public:
    Pair(const HostBytes& comm, std::span<const std::byte> in, std::span<std::byte> out)
        : stream_(comm.stream_.ref()),
          in_(Buffer::allocate(comm.nccl_->device(), in.size())),
          out_(Buffer::allocate(comm.nccl_->device(), out.size())) {
      if (!in.empty()) copy_bytes(in_, in);
      if (!out.empty()) copy_bytes(out_, out);
    }
    std::span<const std::byte> in() const { return in_.as<const std::byte>(); }
    std::span<std::byte> out() const { return out_.as<std::byte>(); }
    void read(std::span<std::byte> out) const {
      if (!out.empty()) copy_bytes(out, out_, stream_);
    }

   private:
    StreamRef stream_;
    Buffer in_;
    Buffer out_;
  };

  std::shared_ptr<Communicator> host_;
  std::unique_ptr<Communicator> nccl_;
  Stream stream_;
};

void run_on_gpus(int size, const CommOptions& options, const contract::RankBody& body) {
  if (cuda_device_count() < size) {
    GTEST_SKIP() << size << " GPUs are needed, " << cuda_device_count() << " are here";
  }
  auto hosts = make_thread_group(size, options);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    std::shared_ptr<Communicator> host = std::move(hosts[static_cast<std::size_t>(rank)]);
    threads.emplace_back([host = std::move(host), rank, &body, &options]() mutable {
      const NcclOptions nccl{.deadline = options.deadline};
      auto group = make_nccl_communicator(*host, Device::cuda(rank), nccl);
      auto bytes = std::make_unique<HostBytes>(std::move(host), std::move(group));
      body(std::move(bytes));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

contract::Backend nccl(int size) {
  return {"nccl_" + std::to_string(size), size, run_on_gpus};
}

TEST(NcclOnGpu, FindsARankThatDoesNotComeWithoutComparingArguments) {
  if (cuda_device_count() < 2) {
    GTEST_SKIP() << "2 GPUs are needed, " << cuda_device_count() << " are here";
  }
  run_thread_group(2, [](Communicator& host) {
    const Device device = Device::cuda(host.rank());
    const auto comm = make_nccl_communicator(
        host, device, {.compares_arguments = false, .deadline = std::chrono::milliseconds(500)});
    const auto stream = Stream::create(device);
    const Buffer in = Buffer::zeros(device, 64);
    const Buffer out = Buffer::zeros(device, 128);
    const auto gather = [&] {
      comm->all_gather(in.as<const std::byte>(), out.as<std::byte>(), stream.ref());
    };
    gather();
    comm->barrier();
    if (host.rank() == 0) gather();  // rank 1 does not
    if (host.rank() == 0) {
      EXPECT_THAT(contract::error_of(ErrorCode::PeerFailed, [&] { comm->barrier(); }),
                  testing::HasSubstr("rank 0 waited 500 ms"));
    } else {
      EXPECT_THAT(contract::error_of(ErrorCode::PeerFailed, [&] { comm->barrier(); }),
                  testing::HasSubstr("rank 0"));
    }
  });
}

}  // namespace

namespace contract {
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorContract, testing::Values(nccl(1), nccl(2)),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorPeersContract, testing::Values(nccl(2)), backend_name);
}  // namespace contract
}  // namespace penstock
