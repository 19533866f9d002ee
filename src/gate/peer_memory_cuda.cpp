#include "gate/peer_memory_cuda.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "gate/agreement.hpp"
#include "gate/process_token.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/log.hpp"
#include "table/sharing/fd_handover.hpp"

namespace penstock::detail {
namespace {

/// What a rank tells the others about its memory; the name of its server follows.
struct Introduction {
  std::uint64_t process = 0;
  std::uint64_t bytes = 0;
  std::int64_t device = 0;
};

std::vector<std::byte> encode(const Introduction& introduction, const std::string& address) {
  std::vector<std::byte> bytes(sizeof(introduction) + address.size());
  std::memcpy(bytes.data(), &introduction, sizeof(introduction));
  std::memcpy(bytes.data() + sizeof(introduction), address.data(), address.size());
  return bytes;
}

cuda::VirtualMemory make_zeros(Device device, std::size_t bytes) {
  auto memory = cuda::VirtualMemory::create(device, bytes);
  const cuda::DeviceGuard guard(device);
  PENSTOCK_CUDA_CHECK(cudaMemset(memory.data(), 0, memory.bytes()));
  PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return memory;
}

}  // namespace

void PeerMemory::open(Communicator& comm, std::size_t bytes) {
  std::optional<FdServer> server;
  agree(&comm, "GateLinear", [&]() -> AgreedFields {
    parts_[rank_] = make_zeros(device_, bytes);
    server.emplace(UniqueFd(parts_[rank_].export_fd()));
    return {};
  });
  const Introduction mine{process_token(), bytes, device_.index};
  const auto introductions = comm.all_gather_object(encode(mine, server->address()));
  agree(&comm, "GateLinear", [&]() -> AgreedFields {
    const StopFlag never;
    for (std::size_t rank = 0; rank < parts_.size(); ++rank) {
      if (rank == rank_) continue;
      const std::vector<std::byte>& message = introductions[rank];
      Introduction other;
      expects(message.size() > sizeof(other), "GateLinear: ranks of different builds");
      std::memcpy(&other, message.data(), sizeof(other));
      const std::string address(reinterpret_cast<const char*>(message.data()) + sizeof(other),
                                message.size() - sizeof(other));
      const UniqueFd fd = receive_fd(address, never);
      parts_[rank] = cuda::VirtualMemory::import(fd.get(), device_, other.bytes);
      if (other.process == mine.process && other.device == mine.device) shares_device_ = true;
    }
    return {};
  });
}

std::unique_ptr<PeerMemory> PeerMemory::create(Communicator& comm, Device device,
                                               std::size_t bytes) {
  std::unique_ptr<PeerMemory> memory(new PeerMemory(device, static_cast<std::size_t>(comm.rank()),
                                                    static_cast<std::size_t>(comm.size())));
  try {
    memory->open(comm, bytes);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported) throw;
    log(LogLevel::Warning, error.what());
    return nullptr;
  }
  return memory;
}

}  // namespace penstock::detail
