#pragma once

struct CUstream_st;  // what cudaStream_t points to

namespace penstock {

/// A CUDA stream that somebody else owns. The default is CUDA's legacy default stream, and is what
/// CPU-only callers pass without thinking of it: CPU work ignores the stream.
class StreamRef {
 public:
  constexpr StreamRef() noexcept = default;
  constexpr explicit StreamRef(CUstream_st* stream) noexcept : stream_(stream) {}

  constexpr CUstream_st* get() const noexcept { return stream_; }

 private:
  CUstream_st* stream_ = nullptr;
};

}  // namespace penstock
