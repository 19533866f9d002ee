#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"
#include "penstock/reader/gather_rows.hpp"
#include "reader/direct/dequantize_row.hpp"

namespace penstock {
namespace {

constexpr std::int64_t kRowGrain = 256;  // about 20 us of work

/// The number of rows in `bytes` bytes of rows of `row_bytes`.
std::int64_t whole_rows(std::string_view where, std::size_t bytes, std::int64_t row_bytes) {
  const auto size = static_cast<std::int64_t>(bytes);
  expects(size % row_bytes == 0, fmt::format("{}: found {} bytes, needed: whole rows of {} bytes",
                                             where, bytes, row_bytes));
  return size / row_bytes;
}

void check_head_dim(std::string_view where, int head_dim) {
  expects(head_dim >= 32 && head_dim % 32 == 0,
          fmt::format("{}: head_dim is {}, needed: a positive multiple of 32", where, head_dim));
}

void check_row_count(std::string_view where, std::string_view what, std::int64_t found,
                     std::int64_t needed) {
  expects(found == needed,
          fmt::format("{}: {} has {} rows, needed: {}", where, what, found, needed));
}

void dequantize_strided(const std::byte* values, std::int64_t value_stride, const std::byte* scales,
                        std::int64_t scale_stride, int head_dim, std::span<std::byte> out) {
  const std::int64_t out_stride = std::int64_t{2} * head_dim;
  const auto rows = static_cast<std::int64_t>(out.size()) / out_stride;
  parallel_for(rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      detail::dequantize_row(values + row * value_stride, scales + row * scale_stride, head_dim,
                             out.data() + row * out_stride);
    }
  });
}

}  // namespace

void dequantize_rows(std::span<const std::byte> values, std::span<const std::byte> scales,
                     int head_dim, std::span<std::byte> out) {
  check_head_dim("dequantize_rows", head_dim);
  const std::int64_t rows = whole_rows("dequantize_rows: values", values.size(), head_dim);
  check_row_count("dequantize_rows", "scales",
                  whole_rows("dequantize_rows: scales", scales.size(), head_dim / 32), rows);
  check_row_count("dequantize_rows", "out",
                  whole_rows("dequantize_rows: out", out.size(), std::int64_t{2} * head_dim), rows);
  dequantize_strided(values.data(), head_dim, scales.data(), head_dim / 32, head_dim, out);
}

void unpack_rows(std::span<const std::byte> records, int head_dim, std::span<std::byte> out) {
  check_head_dim("unpack_rows", head_dim);
  const std::int64_t stride = row_record_bytes(head_dim);
  const std::int64_t rows = whole_rows("unpack_rows: records", records.size(), stride);
  check_row_count("unpack_rows", "out",
                  whole_rows("unpack_rows: out", out.size(), std::int64_t{2} * head_dim), rows);
  dequantize_strided(records.data(), stride, records.data() + head_dim, stride, head_dim, out);
}

}  // namespace penstock
