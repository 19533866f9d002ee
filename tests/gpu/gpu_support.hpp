#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/check.hpp"
#include "cuda/unique_handle.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/stream.hpp"

// What the tests on GPUs share.
namespace penstock::gpu {

inline constexpr Device kGpu = Device::cuda(0);

/// An array on the GPU.
template <typename Value>
class Array {
 public:
  explicit Array(std::size_t count)
      : buffer_(Buffer::zeros(kGpu, count * sizeof(Value))),
        count_(count) {}
  explicit Array(const std::vector<Value>& values) : Array(values.size()) { write(values); }

  void write(const std::vector<Value>& values) {
    copy_bytes(buffer_, std::as_bytes(std::span(values)));
  }
  /// Waits for `stream`.
  std::vector<Value> read(StreamRef stream = {}) const {
    std::vector<Value> values(count_);
    copy_bytes(std::as_writable_bytes(std::span(values)), buffer_, stream);
    return values;
  }
  Value* data() const { return reinterpret_cast<Value*>(buffer_.data()); }
  std::span<Value> span() const { return {data(), count_}; }
  std::size_t count() const { return count_; }

 private:
  Buffer buffer_;
  std::size_t count_;
};

/// A stream that waits for no other.
class Stream {
 public:
  Stream() {
    cudaStream_t stream = nullptr;
    PENSTOCK_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_ = cuda::UniqueStream(stream);
  }
  StreamRef ref() const { return StreamRef(stream_.get()); }
  cudaStream_t get() const { return stream_.get(); }
  void synchronize() const { PENSTOCK_CUDA_CHECK(cudaStreamSynchronize(stream_.get())); }

 private:
  cuda::UniqueStream stream_;
};

/// Everything that `enqueue` does on `stream`, as a graph that can be launched again and again.
class Graph {
 public:
  template <typename Enqueue>
  Graph(const Stream& stream, const Enqueue& enqueue) {
    PENSTOCK_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    enqueue();
    cudaGraph_t graph = nullptr;
    PENSTOCK_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
    graph_ = UniqueGraph(graph);
    cudaGraphExec_t executable = nullptr;
    PENSTOCK_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
    executable_ = UniqueExecutable(executable);
  }
  void launch(const Stream& stream) const {
    PENSTOCK_CUDA_CHECK(cudaGraphLaunch(executable_.get(), stream.get()));
  }

 private:
  using UniqueGraph = cuda::UniqueHandle<cudaGraph_t, cudaGraphDestroy>;
  using UniqueExecutable = cuda::UniqueHandle<cudaGraphExec_t, cudaGraphExecDestroy>;
  UniqueGraph graph_;
  UniqueExecutable executable_;
};

/// Keeps `stream` busy for about `microseconds`.
void delay(const Stream& stream, int microseconds);

/// Adds to `differences` in how many bytes a and b differ, over `token_bytes * *num_tokens` bytes.
void count_differences(const Stream& stream, const std::byte* a, const std::byte* b,
                       std::int64_t token_bytes, const std::int32_t* num_tokens,
                       unsigned long long* differences);

}  // namespace penstock::gpu
