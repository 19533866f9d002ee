#include "gate/peer_memory_cuda.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <random>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "gate/agreement.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"

namespace penstock::detail {
namespace {

/// What a rank tells the others about its buffer.
struct Introduction {
  std::uint64_t process = 0;
  int device = 0;
  const std::shared_ptr<Buffer>* buffer = nullptr;  ///< For ranks of the same process.
  cudaIpcMemHandle_t handle{};                      ///< For the others.
};

std::uint64_t process_token() {
  static const std::uint64_t token = [] {
    std::random_device device;
    return (std::uint64_t{device()} << 32) | device();
  }();
  return token;
}

std::vector<Introduction> introduce(Communicator& comm, const std::shared_ptr<Buffer>& own) {
  Introduction mine{.process = process_token(), .device = own->device().index, .buffer = &own};
  // A platform without handles can still serve the ranks of one process.
  if (cudaIpcGetMemHandle(&mine.handle, own->data()) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
  std::array<std::byte, sizeof(Introduction)> bytes{};
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  std::vector<Introduction> all;
  for (const auto& other : comm.all_gather_object(bytes)) {
    Introduction introduction;
    std::memcpy(&introduction, other.data(), std::min(other.size(), sizeof(introduction)));
    all.push_back(introduction);
  }
  return all;
}

void enable_peer(int mine, int other) {
  if (mine == other) return;
  int can = 0;
  PENSTOCK_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, mine, other));
  if (can == 0) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("GateLinear: cuda:{} cannot reach the memory of cuda:{}", mine, other));
  }
  const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  cuda::check(status, "cudaDeviceEnablePeerAccess");
}

}  // namespace

PeerMemory::~PeerMemory() {
  if (opened_.empty()) return;
  int previous = 0;
  if (cudaGetDevice(&previous) != cudaSuccess) return;  // the runtime is unloading
  static_cast<void>(cudaSetDevice(own_->device().index));
  for (std::byte* pointer : opened_) static_cast<void>(cudaIpcCloseMemHandle(pointer));
  static_cast<void>(cudaSetDevice(previous));
}

std::unique_ptr<PeerMemory> PeerMemory::share(Communicator& comm, std::shared_ptr<Buffer> own) {
  std::unique_ptr<PeerMemory> memory(new PeerMemory(std::move(own)));
  const cuda::DeviceGuard guard(memory->own_->device());
  const auto introductions = introduce(comm, memory->own_);
  try {
    agree(&comm, "GateLinear", [&]() -> AgreedFields {
      for (int rank = 0; rank < comm.size(); ++rank) {
        const Introduction& other = introductions[static_cast<std::size_t>(rank)];
        if (other.process == process_token()) {
          enable_peer(memory->own_->device().index, other.device);
          memory->of_this_process_.push_back(*other.buffer);
          memory->pointers_.push_back((*other.buffer)->data());
          continue;
        }
        void* pointer = nullptr;
        PENSTOCK_CUDA_CHECK(
            cudaIpcOpenMemHandle(&pointer, other.handle, cudaIpcMemLazyEnablePeerAccess));
        memory->opened_.push_back(static_cast<std::byte*>(pointer));
        memory->pointers_.push_back(memory->opened_.back());
      }
      return {};
    });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::PeerFailed) throw;
    log(LogLevel::Warning, error.what());
    return nullptr;
  }
  return memory;
}

}  // namespace penstock::detail
