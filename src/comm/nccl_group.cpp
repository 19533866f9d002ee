// Ranks with a GPU each. NCCL is opened at run time; ids, objects and barriers go through another
// communicator of the same ranks, in host memory.

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/dynamic_library.hpp"
#include "penstock/comm/communicator.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

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

void check_size(const char* call, std::size_t found, std::size_t needed, const char* what) {
  if (found == needed) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{}: {} has {} bytes, needs {}", call, what, found, needed));
}

class NcclGroup final : public Communicator {
 public:
  NcclGroup(Communicator& host, Device device) : host_(host), device_(device) {
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
    check_size("all_gather", out.size(), in.size() * ranks(), "out");
    const cuda::DeviceGuard guard(begin(stream));
    check_nccl(nccl().all_gather(in.data(), out.data(), in.size(), ncclUint8, comm_, stream.get()),
               "ncclAllGather");
  }

  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, std::size_t block_bytes,
                  StreamRef stream) override {
    check_size("all_to_all", in.size(), block_bytes * ranks(), "in");
    check_size("all_to_all", out.size(), block_bytes * ranks(), "out");
    const std::vector<std::int64_t> bytes(ranks(), static_cast<std::int64_t>(block_bytes));
    exchange(in, bytes, out, bytes, stream);
  }

  void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                    std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                    StreamRef stream) override {
    const auto sum = [&](const char* what, std::span<const std::int64_t> sizes) {
      expects(sizes.size() == ranks(), "all_to_all_v: needs one size for every rank");
      std::int64_t total = 0;
      for (const std::int64_t bytes : sizes) {
        expects(bytes >= 0, fmt::format("all_to_all_v: {} has a size below 0", what));
        total += bytes;
      }
      return static_cast<std::size_t>(total);
    };
    check_size("all_to_all_v", in.size(), sum("in_bytes", in_bytes), "in");
    check_size("all_to_all_v", out.size(), sum("out_bytes", out_bytes), "out");
    exchange(in, in_bytes, out, out_bytes, stream);
  }

  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                      StreamRef stream) override {
    expects(dtype == DType::BF16 || dtype == DType::F32, "reduce_scatter: dtype needs BF16 or F32");
    check_size("reduce_scatter", in.size(), out.size() * ranks(), "in");
    const cuda::DeviceGuard guard(begin(stream));
    const auto count = out.size() / static_cast<std::size_t>(element_bytes(dtype));
    check_nccl(nccl().reduce_scatter(in.data(), out.data(), count,
                                     dtype == DType::BF16 ? ncclBfloat16 : ncclFloat32, ncclSum,
                                     comm_, stream.get()),
               "ncclReduceScatter");
  }

  void broadcast(std::span<std::byte> data, int root, StreamRef stream) override {
    expects(root >= 0 && root < size(), "broadcast: root lies outside the group");
    const cuda::DeviceGuard guard(begin(stream));
    check_nccl(nccl().broadcast(data.data(), data.data(), data.size(), ncclUint8, root, comm_,
                                stream.get()),
               "ncclBroadcast");
  }

  void barrier() override {
    const cuda::DeviceGuard guard(device_);
    if (has_stream_) PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
    check_alive();
    host_.barrier();
  }

  std::vector<std::vector<std::byte>> all_gather_object(std::span<const std::byte> mine) override {
    return host_.all_gather_object(mine);
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = host_.split(color, key);
    if (!part) return nullptr;
    auto group = std::make_unique<NcclGroup>(*part, device_);
    group->own_host_ = std::move(part);
    return group;
  }

  void abort(std::string_view cause) noexcept override {
    host_.abort(cause);
    if (comm_ != nullptr) static_cast<void>(nccl().abort(std::exchange(comm_, nullptr)));
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  void check_alive() const {
    if (comm_ == nullptr) throw Error(ErrorCode::PeerFailed, "nccl: the group was aborted");
    ncclResult_t status = ncclSuccess;
    check_nccl(nccl().async_error(comm_, &status), "ncclCommGetAsyncError");
    if (status == ncclSuccess || status == ncclInProgress) return;
    throw Error(ErrorCode::PeerFailed,
                fmt::format("nccl: an earlier call failed: {}", nccl().error_string(status)));
  }

  /// Checks the state of the group; gives its device.
  Device begin(StreamRef stream) {
    check_alive();
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
  ncclComm_t comm_ = nullptr;
  StreamRef stream_;
  bool has_stream_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device device) {
  expects(device.kind == DeviceKind::Cuda, "make_nccl_communicator: needs a CUDA device");
  return std::make_unique<NcclGroup>(host, device);
}

}  // namespace penstock
