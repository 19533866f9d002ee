#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "penstock/checkpoint/model_dir.hpp"

namespace penstock {

/// What a table is filled from.
///
/// Threads: read() may run on several threads at once.
class RowSource {
 public:
  virtual ~RowSource() = default;

  virtual std::int64_t num_rows() const = 0;
  virtual int head_dim() const = 0;

  /// Writes the records of rows [first, first + n) one after another.
  ///
  /// Shapes: records [n, row_record_bytes(head_dim())].
  /// Errors: InvalidArgument for part of a record or rows that are not there; what the source itself
  ///         fails with.
  virtual void read(std::int64_t first, std::span<std::byte> records) const = 0;

  /// The split arrays that lie in a mapped file, for the `file` placement; null pointers if there
  /// are none.
  struct SplitArrays {
    const std::byte* values = nullptr;  ///< [num_rows, head_dim]
    const std::byte* scales = nullptr;  ///< [num_rows, head_dim / 32]
  };
  virtual SplitArrays split_arrays() const { return {}; }

  /// Where the rows come from, for people.
  virtual std::string description() const = 0;
};

/// The table of a model's layer. Keeps the model's files mapped.
///
/// Errors: NotFound, CorruptFile if the tensors are missing, or their dtype or shape is not what
///         config.json says.
std::shared_ptr<const RowSource> open_checkpoint_rows(const ModelDir& model, int layer_id);

/// Rows as a pure function of (seed, layer id, row id), for tables of full size without files.
/// Codes are finite, scales moderate (bytes 109 to 121).
///
/// Errors: InvalidArgument for num_rows < 0 or a head_dim that is no positive multiple of 32.
std::shared_ptr<const RowSource> make_random_rows(std::uint64_t seed, int layer_id,
                                                  std::int64_t num_rows, int head_dim);

}  // namespace penstock
