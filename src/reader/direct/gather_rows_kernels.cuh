#pragma once

#include <cuda_fp8.h>

#include <cstddef>
#include <cstdint>

#include "cuda/bf16.cuh"
#include "cuda/ptx.cuh"
#include "penstock/core/dtype.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "penstock/table/table_view.hpp"
#include "reader/direct/row_order.hpp"

// Device code of gather_rows. A warp reads whole rows; lane i of it handles the same bytes of each.
namespace penstock::detail {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// What a launch needs to know; a kernel parameter. `kParts` is 1, or TableView::kMaxParts where the
/// table is spread.
///
/// Read by every warp before its first load, from constant memory that no launch before has warmed
/// up: so it is no larger than it must be, and what is needed first comes first.
template <int kParts>
struct GatherArguments {
  const std::int32_t* ids = nullptr;  ///< Column 0 of token 0.
  std::int64_t token_stride = 0;
  std::uint32_t rows = 0;  ///< tokens * local_columns.
  int local_columns = 0;   ///< This and the next: as in TableView.
  int column_begin = 0;
  int column_end = 0;
  const std::int32_t* num_tokens = nullptr;  ///< Null: all.
  bool takes_every_id = false;               ///< Ids lie densely, and each has its staging row.
  std::int64_t row_begin = 0;  ///< This and what follows, but for `out`: as in TableView.
  std::int64_t row_end = 0;
  std::int64_t value_stride = 0;
  std::int64_t scale_stride = 0;
  const std::byte* values[kParts] = {};
  const std::byte* scales[kParts] = {};
  std::byte* out = nullptr;
  const OrderedRow* order = nullptr;  ///< [rows], for the kernels that read in order.
  std::uint32_t rows_per_part = 0;
  int head_dim = 0;
  std::int64_t num_rows = 0;
  std::uint64_t* rejected = nullptr;
};

/// A row of one part of the table; -1: zeros.
struct FoundRow {
  std::int32_t row = -1;
  std::int32_t part = 0;
};

__device__ inline std::uint32_t warp_index() {
  return (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
}

__device__ inline std::uint32_t num_warps() {
  return gridDim.x * blockDim.x / kWarp;
}

/// Staging rows that this launch writes: those of the first *num_tokens tokens.
template <int kParts>
__device__ std::uint32_t staging_rows(const GatherArguments<kParts>& a) {
  if (a.num_tokens == nullptr) return a.rows;
  const std::int64_t tokens = max(__ldg(a.num_tokens), 0);
  return static_cast<std::uint32_t>(
      min(tokens * a.local_columns, static_cast<std::int64_t>(a.rows)));
}

/// The row id of a staging row; -1 past the last one and for a padded column.
template <int kParts>
__device__ std::int32_t load_id(const GatherArguments<kParts>& a, std::uint32_t staging_row) {
  if (staging_row >= a.rows) return -1;
  if (a.takes_every_id) return __ldg(a.ids + staging_row);
  const auto columns = static_cast<std::uint32_t>(a.local_columns);
  const std::uint32_t token = staging_row / columns;
  const int column = a.column_begin + static_cast<int>(staging_row - token * columns);
  if (column >= a.column_end) return -1;
  return __ldg(a.ids + static_cast<std::int64_t>(token) * a.token_stride + column);
}

/// The row that comes at `place` of a read: in the order of the staging rows, or in that of `order`.
template <bool kInOrder, int kParts>
__device__ OrderedRow row_at(const GatherArguments<kParts>& a, std::uint32_t place) {
  if constexpr (!kInOrder) return {load_id(a, place), place};
  if (place >= a.rows) return {-1, a.rows};
  const int2 both = __ldg(reinterpret_cast<const int2*>(a.order + place));
  return {both.x, static_cast<std::uint32_t>(both.y)};
}

/// Where row `id` lies. Counts ids that no table of this size can hold, if it `counts`.
template <int kParts>
__device__ FoundRow find_row(const GatherArguments<kParts>& a, std::int32_t id, bool counts) {
  if (id >= a.row_begin && id < a.row_end) {
    const auto row = static_cast<std::int32_t>(id - a.row_begin);
    if constexpr (kParts == 1) return {row, 0};
    const std::uint32_t part = static_cast<std::uint32_t>(row) / a.rows_per_part;
    return {static_cast<std::int32_t>(static_cast<std::uint32_t>(row) - part * a.rows_per_part),
            static_cast<std::int32_t>(part)};
  }
  if (counts && (id < -1 || id >= a.num_rows) && a.rejected != nullptr) {
    static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t), "the counter's own width");
    atomicAdd(reinterpret_cast<unsigned long long*>(a.rejected), 1ULL);
  }
  return {};
}

/// Two e4m3 codes times a scale, exact until the last rounding.
__device__ inline std::uint32_t dequantize_pair(std::uint32_t codes, float scale) {
  const __half2 pair = __half2(
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xFFFFU), __NV_E4M3));
  const float2 values = __half22float2(pair);
  return cuda::to_bf16_pair(__fmul_rn(values.x, scale), __fmul_rn(values.y, scale));
}

/// The fast kernel's row: 256 codes and 8 scale bytes, so that a lane holds 8 codes of one scale.
inline constexpr int kFastDim = 256;
static_assert(kFastDim == kWarp * 8, "a lane reads 8 codes at a time");

/// A lane's share of a row: its 8 codes, and all 8 scale bytes.
struct LaneBytes {
  uint2 codes;
  uint2 scales;
};

template <int kParts>
__device__ LaneBytes load_lane(const GatherArguments<kParts>& a, FoundRow found, int lane) {
  const bool is_there = found.row >= 0;
  const std::int64_t row = found.row;
  const auto* values = reinterpret_cast<const uint2*>(a.values[found.part] + row * a.value_stride);
  const auto* scales = reinterpret_cast<const uint2*>(a.scales[found.part] + row * a.scale_stride);
  return {cuda::load_or_zero(is_there, values + lane), cuda::load_or_zero(is_there, scales)};
}

__device__ inline uint4 dequantize_lane(const LaneBytes& bytes, int lane) {
  // 4 lanes share a scale byte: lanes 0 to 15 those of the first word.
  const std::uint32_t word = lane < kWarp / 2 ? bytes.scales.x : bytes.scales.y;
  const std::uint32_t byte = (word >> (8 * ((lane / 4) % 4))) & 0xFFU;
  const float scale = __uint_as_float(byte << 23);
  return {dequantize_pair(bytes.codes.x, scale), dequantize_pair(bytes.codes.x >> 16, scale),
          dequantize_pair(bytes.codes.y, scale), dequantize_pair(bytes.codes.y >> 16, scale)};
}

template <RowFormat kFormat>
__device__ void store_lane(std::byte* out, std::uint32_t staging_row, const LaneBytes& bytes,
                           int lane) {
  // Stores are streaming: staging is read once, by a later kernel.
  if constexpr (kFormat == RowFormat::Bf16) {
    constexpr std::int64_t kRowBytes = 2 * kFastDim;
    auto* row = reinterpret_cast<uint4*>(out + static_cast<std::int64_t>(staging_row) * kRowBytes);
    __stcs(row + lane, dequantize_lane(bytes, lane));
  } else {
    constexpr std::int64_t kRowBytes = row_record_bytes(kFastDim);
    static_assert(kRowBytes == kFastDim + 8, "one more 8-byte word holds all scales");
    auto* row = reinterpret_cast<uint2*>(out + static_cast<std::int64_t>(staging_row) * kRowBytes);
    __stcs(row + lane, bytes.codes);
    if (lane == 0) __stcs(row + kWarp, bytes.scales);
  }
}

/// Reads rows of 256 codes; a warp has kRows of them in flight.
///
/// Grid:   any; the loop strides over it. Block: a multiple of 32, at most 1,024.
/// Shared: none. Sync: none between warps.
/// Needs:  values and scales aligned to 8 bytes, strides multiples of 8, out aligned to 16.
template <RowFormat kFormat, int kRows, int kParts, bool kInOrder>
__global__ void __launch_bounds__(1024)
    gather_rows_kernel(const __grid_constant__ GatherArguments<kParts> a) {
  static_assert(kRows <= kWarp, "lane k looks up row k of the group");
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const std::uint32_t stride = num_warps() * kRows;
  std::uint32_t first = warp_index() * kRows;
  // Ids are loaded before the count is known, and one group ahead: both hide a trip to memory.
  OrderedRow row = lane < kRows ? row_at<kInOrder>(a, first + lane) : OrderedRow{};
  const std::uint32_t end = staging_rows(a);
  const std::uint32_t last =
      kInOrder ? a.rows : end;  // in order, rows past the count may come first
  for (; first < last; first += stride) {
    const bool is_wanted = first + lane < last && row.staging_row < end;
    const FoundRow mine = is_wanted ? find_row(a, row.id, true) : FoundRow{};
    const std::uint32_t place = row.staging_row;
    row = lane < kRows ? row_at<kInOrder>(a, first + stride + lane) : OrderedRow{};
    LaneBytes bytes[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      FoundRow found{__shfl_sync(kAllLanes, mine.row, k), 0};
      if constexpr (kParts > 1) found.part = __shfl_sync(kAllLanes, mine.part, k);
      bytes[k] = load_lane(a, found, lane);
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const std::uint32_t to = kInOrder ? __shfl_sync(kAllLanes, place, k) : first + k;
      if (first + k < last && to < end) store_lane<kFormat>(a.out, to, bytes[k], lane);
    }
  }
}

/// Reads few rows of 256 codes, each with a warp of its own: what a loop over more would cost shows
/// where a read takes three microseconds.
///
/// Grid:   at least a warp for each row. Block: a multiple of 32, at most 1,024.
/// Shared: none. Sync: none.
/// Needs:  what gather_rows_kernel needs.
template <RowFormat kFormat, int kParts>
__global__ void __launch_bounds__(1024)
    gather_few_rows_kernel(const __grid_constant__ GatherArguments<kParts> a) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const std::uint32_t row = warp_index();
  if (row >= a.rows) return;
  const std::int32_t id = load_id(a, row);  // all lanes alike
  if (row >= staging_rows(a)) return;
  const FoundRow found = find_row(a, id, lane == 0);
  store_lane<kFormat>(a.out, row, load_lane(a, found, lane), lane);
}

/// Reads rows of any width and alignment, byte by byte.
///
/// Grid:   any; the loop strides over it. Block: a multiple of 32, at most 1,024.
/// Shared: none. Sync: none.
template <RowFormat kFormat>
__global__ void __launch_bounds__(1024)
    gather_any_rows_kernel(const __grid_constant__ GatherArguments<TableView::kMaxParts> a) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int num_scales = a.head_dim / 32;
  const std::uint32_t end = staging_rows(a);
  for (std::uint32_t r = warp_index(); r < end; r += num_warps()) {
    // One lane looks the row up, so that a bad id counts once.
    FoundRow found = lane == 0 ? find_row(a, load_id(a, r), true) : FoundRow{};
    found = {__shfl_sync(kAllLanes, found.row, 0), __shfl_sync(kAllLanes, found.part, 0)};
    const std::int64_t row = found.row;
    const auto* values =
        reinterpret_cast<const std::uint8_t*>(a.values[found.part]) + row * a.value_stride;
    const auto* scales =
        reinterpret_cast<const std::uint8_t*>(a.scales[found.part]) + row * a.scale_stride;
    if constexpr (kFormat == RowFormat::Bf16) {
      auto* out =
          reinterpret_cast<std::uint16_t*>(a.out) + static_cast<std::int64_t>(r) * a.head_dim;
      for (int e = lane; e < a.head_dim; e += kWarp) {
        out[e] = row < 0 ? std::uint16_t{0} : dequantize_element(values[e], scales[e / 32]).bits;
      }
    } else {
      const auto record = static_cast<int>(row_record_bytes(a.head_dim));
      auto* out = reinterpret_cast<std::uint8_t*>(a.out) + static_cast<std::int64_t>(r) * record;
      for (int b = lane; b < record; b += kWarp) {
        const bool is_pad = row < 0 || b >= a.head_dim + num_scales;
        const bool is_value = b < a.head_dim;
        out[b] = is_pad ? std::uint8_t{0} : is_value ? values[b] : scales[b - a.head_dim];
      }
    }
  }
}

}  // namespace penstock::detail
