#include "table/lifecycle/load_rows.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

#include "penstock/core/parallel.hpp"
#include "penstock/table/table_view.hpp"

namespace penstock::detail {
namespace {

// One read: long enough for the disk to read ahead, short enough to stop soon.
constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;

}  // namespace

void load_rows(const RowSource& rows, RowRange range, std::byte* out, const StopFlag& stop) {
  const std::int64_t record_bytes = row_record_bytes(rows.head_dim());
  const std::int64_t chunk_rows = std::max<std::int64_t>(1, kChunkBytes / record_bytes);
  const std::int64_t num_rows = range.end - range.begin;
  const std::int64_t chunks = (num_rows + chunk_rows - 1) / chunk_rows;
  parallel_for(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      stop.check();
      const std::int64_t first = chunk * chunk_rows;
      const std::int64_t bytes = std::min(chunk_rows, num_rows - first) * record_bytes;
      rows.read(range.begin + first,
                std::span(out + first * record_bytes, static_cast<std::size_t>(bytes)));
    }
  });
}

}  // namespace penstock::detail
