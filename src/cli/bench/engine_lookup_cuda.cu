#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "cli/bench/engine_lookup.hpp"
#include "cli/bench/engine_lookup_kernel.cuh"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::System, std::string(call) + ": " + cudaGetErrorString(status));
}

int multiprocessors(Device device) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.index),
        "cudaDeviceGetAttribute");
  return count;
}

}  // namespace

void engine_lookup(const TableView& table, const std::int32_t* ids, std::int64_t rows,
                   EngineGrid grid, std::span<BF16> out, Device device, StreamRef stream) {
  check(cudaSetDevice(device.index), "cudaSetDevice");
  const std::int64_t steps = (rows + kEngineRows - 1) / kEngineRows;
  const int all = multiprocessors(device);
  const auto blocks =
      static_cast<int>(std::min<std::int64_t>(steps, grid == EngineGrid::Full ? all : all / 2));
  const auto* values = reinterpret_cast<const std::uint8_t*>(table.values[0]);
  engine_lookup_kernel<<<blocks, kEngineThreads, 0, stream.get()>>>(
      values, values + table.num_rows * 256, ids, reinterpret_cast<std::uint16_t*>(out.data()),
      static_cast<int>(rows));
  check(cudaGetLastError(), "engine_lookup_kernel");
}

void copy_strided(std::byte* to, std::int64_t to_stride, const std::byte* from,
                  std::int64_t from_stride, std::int64_t bytes, std::int64_t count,
                  StreamRef stream) {
  check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(to_stride), from,
                          static_cast<std::size_t>(from_stride), static_cast<std::size_t>(bytes),
                          static_cast<std::size_t>(count), cudaMemcpyDeviceToDevice, stream.get()),
        "cudaMemcpy2DAsync");
}

struct SideStream::State {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
};

SideStream::SideStream(Device device) : state_(std::make_unique<State>()) {
  check(cudaSetDevice(device.index), "cudaSetDevice");
  check(cudaStreamCreateWithFlags(&state_->stream, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaEventCreateWithFlags(&state_->event, cudaEventDisableTiming), "cudaEventCreate");
}

SideStream::~SideStream() {
  if (state_->event != nullptr) static_cast<void>(cudaEventDestroy(state_->event));
  if (state_->stream != nullptr) static_cast<void>(cudaStreamDestroy(state_->stream));
}

void SideStream::fork(StreamRef stream) {
  check(cudaEventRecord(state_->event, stream.get()), "cudaEventRecord");
  check(cudaStreamWaitEvent(state_->stream, state_->event, 0), "cudaStreamWaitEvent");
}

void SideStream::join(StreamRef stream) {
  check(cudaEventRecord(state_->event, state_->stream), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream.get(), state_->event, 0), "cudaStreamWaitEvent");
}

StreamRef SideStream::ref() const {
  return StreamRef(state_->stream);
}

std::function<void()> capture(StreamRef stream, const std::function<void()>& enqueue) {
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  enqueue();
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  static_cast<void>(cudaGraphDestroy(graph));
  const std::shared_ptr<CUgraphExec_st> kept(
      executable, [](cudaGraphExec_t unused) { static_cast<void>(cudaGraphExecDestroy(unused)); });
  return [kept, stream] { check(cudaGraphLaunch(kept.get(), stream.get()), "cudaGraphLaunch"); };
}

}  // namespace penstock::cli
