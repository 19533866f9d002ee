#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "core/round_up.hpp"
#include "cuda/alignment.hpp"
#include "cuda/device_guard.hpp"
#include "cuda/launch.cuh"
#include "gate/one_shot_cuda.hpp"
#include "gate/one_shot_kernels.cuh"
#include "gate/peer_memory_cuda.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

/// Blocks of a launch: few enough to run together beside anything, for they wait for other ranks.
constexpr int kMostBlocks = 64;

/// The parts of a shared block begin as memory of their own would.
constexpr std::size_t whole_lines(std::size_t bytes) {
  return round_up(bytes, std::size_t{256});
}

/// Where the parts of a rank's shared block lie. Equal on all ranks.
struct Layout {
  std::int64_t rank_stride = 0;  ///< Elements of one rank's part of a half.
  std::int64_t half_stride = 0;
  std::size_t flags = 0;  ///< Byte offsets.
  std::size_t counters = 0;
  std::size_t bytes = 0;
};

Layout layout_of(std::int64_t output_size, int ranks) {
  Layout layout;
  const std::int64_t rows = (output_size + ranks - 1) / ranks + kVectorElements;
  layout.rank_stride = kOneShotTokens * (rows / kVectorElements) * kVectorElements;
  layout.half_stride = ranks * layout.rank_stride;
  layout.flags = whole_lines(static_cast<std::size_t>(2 * layout.half_stride) * sizeof(BF16));
  layout.counters =
      layout.flags + whole_lines(static_cast<std::size_t>(ranks) * sizeof(std::uint32_t));
  layout.bytes = layout.counters + whole_lines(3 * sizeof(std::uint32_t));
  return layout;
}

struct HostFree {
  void operator()(int* word) const { static_cast<void>(cudaFreeHost(word)); }
};

std::unique_ptr<int, HostFree> make_host_word() {
  int* word = nullptr;
  PENSTOCK_CUDA_CHECK(cudaHostAlloc(&word, sizeof(int), cudaHostAllocPortable));
  *word = 0;
  return std::unique_ptr<int, HostFree>(word);
}

class OneShotGather final : public IdenticalGather {
 public:
  OneShotGather(Communicator& comm, std::int64_t largest, std::unique_ptr<PeerMemory> memory)
      : comm_(comm),
        rank_(comm.rank()),
        ranks_(comm.size()),
        largest_(largest),
        layout_(layout_of(largest, ranks_)),
        memory_(std::move(memory)) {
    const cuda::DeviceGuard guard(device());
    missing_rank_ = make_host_word();
    cuda::load_kernel(one_shot_kernel);
  }

  bool fits(const GateShape& shape) const override {
    if (shape.gating != GatingType::Elementwise || shape.output_size > largest_) return false;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (even_share(shape.output_size, ranks_, rank).end % kVectorElements != 0) return false;
    }
    return true;
  }

  std::int64_t max_tokens() const override { return kOneShotTokens; }

  void run(const IdenticalGatherCall& call, StreamRef stream) override {
    if (const int missing = *static_cast<volatile int*>(missing_rank_.get()); missing != 0) {
      throw Error(ErrorCode::PeerFailed, "GateLinear: rank " + std::to_string(missing - 1) +
                                             " did not come to a gather of identical rows");
    }
    if (call.tokens == 0) return;
    expects(cuda::is_aligned(call.attn) && cuda::is_aligned(call.out),
            "GateLinear: attn_out and out need to be aligned to 16 bytes");
    const cuda::DeviceGuard guard(device());
    const OneShotArguments arguments = arguments_of(call);
    meet_on_shared_device(stream);
    const std::int64_t vectors = call.tokens * arguments.rows[rank_] / kVectorElements;
    const std::int64_t blocks = (vectors + kOneShotThreads - 1) / kOneShotThreads;
    cuda::launch("one_shot_kernel", one_shot_kernel,
                 {.blocks = static_cast<int>(std::clamp<std::int64_t>(blocks, 1, kMostBlocks)),
                  .threads = kOneShotThreads},
                 stream, arguments);
  }

 private:
  Device device() const { return memory_->device(); }

  /// Kernels are loaded by their first launch, for which the driver waits until a device is idle:
  /// a rank that loads one while another rank's gather waits for it on the same device would wait
  /// for itself. After the meeting all ranks have nothing to launch but the gather.
  void meet_on_shared_device(StreamRef stream) {
    if (!memory_->shares_device()) return;
    cudaStreamCaptureStatus status{};
    PENSTOCK_CUDA_CHECK(cudaStreamIsCapturing(stream.get(), &status));
    if (status == cudaStreamCaptureStatusNone) comm_.barrier();
  }

  OneShotArguments arguments_of(const IdenticalGatherCall& call) const {
    OneShotArguments arguments;
    arguments.rank = rank_;
    arguments.ranks = ranks_;
    arguments.tokens = call.tokens;
    arguments.width = call.shape.output_size;
    arguments.z = call.z;
    arguments.attn = call.attn;
    arguments.out = call.out;
    arguments.half_stride = layout_.half_stride;
    arguments.rank_stride = layout_.rank_stride;
    for (int rank = 0; rank < ranks_; ++rank) {
      const IndexRange rows = even_share(call.shape.output_size, ranks_, rank);
      arguments.first_row[rank] = rows.begin;
      arguments.rows[rank] = rows.size();
      arguments.staging[rank] = reinterpret_cast<BF16*>(memory_->of(rank));
      arguments.flags[rank] = reinterpret_cast<std::uint32_t*>(memory_->of(rank) + layout_.flags);
    }
    auto* counters = reinterpret_cast<std::uint32_t*>(memory_->of(rank_) + layout_.counters);
    arguments.round = counters;
    arguments.arrived = counters + 1;
    arguments.departed = counters + 2;
    arguments.missing_rank = missing_rank_.get();
    return arguments;
  }

  Communicator& comm_;
  int rank_;
  int ranks_;
  std::int64_t largest_;
  Layout layout_;
  std::unique_ptr<PeerMemory> memory_;
  std::unique_ptr<int, HostFree> missing_rank_;
};

}  // namespace

std::unique_ptr<IdenticalGather> make_one_shot_gather(Communicator& comm, const GateShape& largest,
                                                      Device device) {
  if (comm.size() > kOneShotRanks) return nullptr;
  // Zeros: every rank has finished round 0.
  auto memory = PeerMemory::create(comm, device, layout_of(largest.output_size, comm.size()).bytes);
  if (!memory) return nullptr;
  return std::make_unique<OneShotGather>(comm, largest.output_size, std::move(memory));
}

}  // namespace penstock::detail
