// Ranks with a GPU each. NCCL is opened at run time; its id, objects, barriers and the comparison of
// arguments go through another communicator of the same ranks, in host memory. That one also knows
// who is alive: NCCL itself would wait for a dead rank for ever.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/agreement.hpp"
#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/dynamic_library.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::CallArguments;
using detail::Collective;

/// The part of NCCL that is used.
struct Nccl {
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRank) init_rank = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclCommGetAsyncError) async_error = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
};

Nccl open_nccl() {
  constexpr std::array<const char*, 2> names{"libnccl.so.2", "libnccl.so"};
  const auto library = cuda::DynamicLibrary::open(names);
  Nccl nccl;
  const auto find = [&library](const char* name, auto& function) {
    function = library.find<std::remove_reference_t<decltype(function)>>(name);
  };
  find("ncclGetUniqueId", nccl.get_unique_id);
  find("ncclCommInitRank", nccl.init_rank);
  find("ncclCommDestroy", nccl.destroy);
  find("ncclCommAbort", nccl.abort);
  find("ncclCommGetAsyncError", nccl.async_error);
  find("ncclGetErrorString", nccl.error_string);
  find("ncclAllGather", nccl.all_gather);
  find("ncclReduceScatter", nccl.reduce_scatter);
  find("ncclBroadcast", nccl.broadcast);
  find("ncclSend", nccl.send);
  find("ncclRecv", nccl.receive);
  find("ncclGroupStart", nccl.group_start);
  find("ncclGroupEnd", nccl.group_end);
  return nccl;
}

const Nccl& nccl() {
  static const Nccl library = open_nccl();
  return library;
}

void check_nccl(ncclResult_t status, const char* call,
                CodeLocation location = CodeLocation::current()) {
  if (status == ncclSuccess || status == ncclInProgress) return;
  throw Error(ErrorCode::System, fmt::format("{}: {}", call, nccl().error_string(status)),
              location);
}

class NcclGroup final : public Communicator {
 public:
  NcclGroup(Communicator& host, Device device, const NcclOptions& options)
      : host_(host),
        device_(device),
        options_(options) {
    const cuda::DeviceGuard guard(device);
    static_cast<void>(nccl());  // missing on this machine: all ranks find out before they meet
    ncclUniqueId id{};
    if (host.rank() == 0) check_nccl(nccl().get_unique_id(&id), "ncclGetUniqueId");
    host.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    check_nccl(nccl().init_rank(&comm_, host.size(), id, host.rank()), "ncclCommInitRank");
  }
  ~NcclGroup() override {
    if (comm_ != nullptr) static_cast<void>(nccl().destroy(comm_));
  }

  int rank() const noexcept override { return host_.rank(); }
  int size() const noexcept override { return host_.size(); }
  Device device() const noexcept override { return device_; }
  std::string_view engine() const noexcept override { return "nccl"; }

  void all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                  StreamRef stream) override {
    agree(detail::describe_all_gather(size(), in.size(), out.size()));
    const cuda::DeviceGuard guard(begin(stream));
    check_nccl(nccl().all_gather(in.data(), out.data(), in.size(), ncclUint8, comm_, stream.get()),
               "ncclAllGather");
  }

  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, std::size_t block_bytes,
                  StreamRef stream) override {
    agree(detail::describe_all_to_all(size(), in.size(), out.size(), block_bytes));
    const std::vector<std::int64_t> bytes(ranks(), static_cast<std::int64_t>(block_bytes));
    exchange(in, bytes, out, bytes, stream);
  }

  void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                    std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                    StreamRef stream) override {
    agree(detail::describe_all_to_all_v(size(), in.size(), in_bytes, out.size(), out_bytes));
    exchange(in, in_bytes, out, out_bytes, stream);
  }

  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                      StreamRef stream) override {
    agree(detail::describe_reduce_scatter(size(), in.size(), out.size(), dtype));
    const cuda::DeviceGuard guard(begin(stream));
    const auto count = out.size() / static_cast<std::size_t>(element_bytes(dtype));
    check_nccl(nccl().reduce_scatter(in.data(), out.data(), count,
                                     dtype == DType::BF16 ? ncclBfloat16 : ncclFloat32, ncclSum,
                                     comm_, stream.get()),
               "ncclReduceScatter");
  }

  void broadcast(std::span<std::byte> data, int root, StreamRef stream) override {
    agree(detail::describe_broadcast(size(), data.size(), root));
    const cuda::DeviceGuard guard(begin(stream));
    check_nccl(nccl().broadcast(data.data(), data.data(), data.size(), ncclUint8, root, comm_,
                                stream.get()),
               "ncclBroadcast");
  }

  void barrier() override {
    agree({.collective = Collective::Barrier});
    drain();
    host_.barrier();
  }

  std::vector<std::vector<std::byte>> all_gather_object(std::span<const std::byte> mine) override {
    agree({.collective = Collective::AllGatherObject});
    return host_.all_gather_object(mine);
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = host_.split(color, key);
    if (!part) return nullptr;
    auto group = std::make_unique<NcclGroup>(*part, device_, options_);
    group->own_host_ = std::move(part);
    return group;
  }

  void abort(std::string_view cause) noexcept override {
    host_.abort(cause);
    abort_nccl();
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  void abort_nccl() noexcept {
    if (comm_ != nullptr) static_cast<void>(nccl().abort(std::exchange(comm_, nullptr)));
  }

  /// Compares the arguments of all ranks, or looks at this rank's alone.
  void agree(const CallArguments& mine) {
    const std::string_view name = to_string(mine.collective);
    std::optional<std::string> problem;
    if (options_.compares_arguments) {
      std::vector<CallArguments> calls;
      try {
        for (const auto& call : host_.all_gather_object(detail::encode_call(mine))) {
          calls.push_back(detail::decode_call(call));
        }
      } catch (const Error& error) {
        abort_nccl();  // what is under way on the GPU waits for the rank that failed
        throw Error(error.code(), fmt::format("{}: {}", name, error.what()));
      }
      problem = detail::find_disagreement(calls);
    } else if (!mine.problem.empty()) {
      problem = fmt::format("{}: rank {}: {}", name, rank(), mine.problem);
    }
    if (problem) throw Error(ErrorCode::InvalidArgument, *problem);
    check_alive();
  }

  void check_alive() const {
    if (comm_ == nullptr) throw Error(ErrorCode::PeerFailed, "nccl: the group was aborted");
    ncclResult_t status = ncclSuccess;
    check_nccl(nccl().async_error(comm_, &status), "ncclCommGetAsyncError");
    if (status == ncclSuccess || status == ncclInProgress) return;
    throw Error(ErrorCode::PeerFailed,
                fmt::format("nccl: an earlier call failed: {}", nccl().error_string(status)));
  }

  /// Waits until what was enqueued is done, or for the deadline: some rank did not come then.
  void drain() {
    if (!has_stream_) return;
    const cuda::DeviceGuard guard(device_);
    const auto deadline = std::chrono::steady_clock::now() + options_.deadline;
    while (true) {
      const cudaError_t status = cudaStreamQuery(stream_.get());
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) cuda::check(status, "cudaStreamQuery");
      if (std::chrono::steady_clock::now() > deadline) break;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    const std::string cause = fmt::format("nccl: rank {} waited {} ms for what it had enqueued",
                                          rank(), options_.deadline.count());
    abort(cause);
    throw Error(ErrorCode::PeerFailed, cause);
  }

  /// Checks the state of the group; gives its device.
  Device begin(StreamRef stream) {
    expects(!has_stream_ || stream.get() == stream_.get(),
            "nccl: called on a second stream; a communicator has one");
    stream_ = stream;
    has_stream_ = true;
    return device_;
  }

  void exchange(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                StreamRef stream) {
    const cuda::DeviceGuard guard(begin(stream));
    check_nccl(nccl().group_start(), "ncclGroupStart");
    const std::byte* from = in.data();
    std::byte* to = out.data();
    for (int peer = 0; peer < size(); ++peer) {
      const auto sent = static_cast<std::size_t>(in_bytes[static_cast<std::size_t>(peer)]);
      const auto received = static_cast<std::size_t>(out_bytes[static_cast<std::size_t>(peer)]);
      // Both sides leave a transfer of nothing out.
      if (sent > 0) {
        check_nccl(nccl().send(from, sent, ncclUint8, peer, comm_, stream.get()), "ncclSend");
      }
      if (received > 0) {
        check_nccl(nccl().receive(to, received, ncclUint8, peer, comm_, stream.get()), "ncclRecv");
      }
      from += sent;
      to += received;
    }
    check_nccl(nccl().group_end(), "ncclGroupEnd");
  }

  std::unique_ptr<Communicator> own_host_;  ///< Of a group that split() made.
  Communicator& host_;
  Device device_;
  NcclOptions options_;
  ncclComm_t comm_ = nullptr;
  StreamRef stream_;
  bool has_stream_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device device,
                                                     const NcclOptions& options) {
  expects(device.kind == DeviceKind::Cuda, "make_nccl_communicator: needs a CUDA device");
  return std::make_unique<NcclGroup>(host, device, options);
}

}  // namespace penstock
