#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "core/keyed_numbers.hpp"
#include "penstock/core/error.hpp"
#include "penstock/table/row_source.hpp"
#include "penstock/table/table_view.hpp"
#include "table/check_read.hpp"

namespace penstock {
namespace {

/// Scale byte `index` of a row whose codes take `code_words` words: 109 to 121, so that values are of
/// the size of a residual stream or smaller.
std::byte random_scale(std::uint64_t row_key, int code_words, int index) {
  const std::uint64_t word = detail::word_of_row(row_key, code_words + index / 8);
  const std::uint64_t byte = (word >> (8 * (index % 8))) & 0xFF;
  return static_cast<std::byte>(109 + ((byte * 13) >> 8));
}

class RandomRows final : public RowSource {
 public:
  RandomRows(std::uint64_t seed, int layer_id, std::int64_t num_rows, int head_dim)
      : seed_(seed),
        layer_id_(layer_id),
        num_rows_(num_rows),
        head_dim_(head_dim) {}

  std::int64_t num_rows() const override { return num_rows_; }
  int head_dim() const override { return head_dim_; }

  void read(std::int64_t first, std::span<std::byte> records) const override {
    const std::int64_t count = detail::check_read(*this, first, records.size());
    const std::uint64_t layer_key = detail::layer_key(seed_, layer_id_, 0);
    std::byte* record = records.data();
    for (std::int64_t row = first; row < first + count; ++row) {
      write_record(detail::row_key(layer_key, row), record);
      record += row_record_bytes(head_dim_);
    }
  }

  std::string description() const override {
    return fmt::format("random rows, seed {}, layer {}", seed_, layer_id_);
  }

 private:
  void write_record(std::uint64_t row_key, std::byte* record) const {
    const int code_words = head_dim_ / 8;
    for (int i = 0; i < code_words; ++i) {
      const std::uint64_t codes = detail::finite_codes(detail::word_of_row(row_key, i));
      std::memcpy(record + std::ptrdiff_t{8} * i, &codes, sizeof(codes));
    }
    std::byte* scales = record + head_dim_;
    const std::int64_t tail_bytes = row_record_bytes(head_dim_) - head_dim_;
    std::memset(scales, 0, static_cast<std::size_t>(tail_bytes));
    for (int i = 0; i < head_dim_ / 32; ++i) {
      scales[i] = random_scale(row_key, code_words, i);
    }
  }

  std::uint64_t seed_;
  int layer_id_;
  std::int64_t num_rows_;
  int head_dim_;
};

}  // namespace

std::shared_ptr<const RowSource> make_random_rows(std::uint64_t seed, int layer_id,
                                                  std::int64_t num_rows, int head_dim) {
  expects(num_rows >= 0 && head_dim >= 32 && head_dim % 32 == 0,
          fmt::format("make_random_rows: found {} rows of {} elements, needed: rows >= 0 and a "
                      "positive multiple of 32 elements",
                      num_rows, head_dim));
  return std::make_shared<RandomRows>(seed, layer_id, num_rows, head_dim);
}

}  // namespace penstock
