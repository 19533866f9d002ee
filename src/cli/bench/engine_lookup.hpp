#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"
#include "penstock/table/table_view.hpp"

// What the baselines of `bench lookup` and `bench prefetch` need of CUDA.
namespace penstock::cli {

enum class EngineGrid { Full, Half };  ///< Blocks: as many as multiprocessors, or half of them.

/// Reads `rows` rows of 256 elements as inference engines do, from the bytes of `table` taken as two
/// arrays, values before scales.
///
/// Shapes: ids [rows], out [rows, 256], on `device`.
/// Async:  one kernel on `stream`. Legal in capture.
/// Errors: Unsupported in a build without CUDA.
void engine_lookup(const TableView& table, const std::int32_t* ids, std::int64_t rows,
                   EngineGrid grid, std::span<BF16> out, Device device, StreamRef stream);

/// Copies `count` pieces of `bytes` bytes from one stride to another, on the GPU of `stream`.
///
/// Async: one copy on `stream`.
void copy_strided(std::byte* to, std::int64_t to_stride, const std::byte* from,
                  std::int64_t from_stride, std::int64_t bytes, std::int64_t count,
                  StreamRef stream);

/// A side stream as engines use one: joined through events.
class SideStream {
 public:
  explicit SideStream(Device device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  /// Makes it wait for what `stream` has enqueued.
  void fork(StreamRef stream);
  /// Makes `stream` wait for what it has enqueued.
  void join(StreamRef stream);
  StreamRef ref() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Everything that `enqueue` puts on `stream`, captured into a graph and launched by the result.
std::function<void()> capture(StreamRef stream, const std::function<void()>& enqueue);

}  // namespace penstock::cli
