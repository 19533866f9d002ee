#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "arrays.hpp"
#include "penstock/reader/gather_rows.hpp"

namespace penstock::python {

/// Which layer's ids a reader picks from those of a step.
struct LayerColumns {
  int layer_idx = 0;  ///< Index among the layers that have Engram.
  int num_layers = 1;
  int columns = 0;  ///< All global columns.
};

/// Row ids as a caller gives them: [T, C] of one layer, or [T, L, C] of all of them, of which the
/// layer's are picked without a copy.
class RowIdsArgument {
 public:
  /// `device` is where they are read: they are brought there if they lie in host memory, and
  /// converted if they are not 32 bits wide.
  ///
  /// Errors: InvalidArgument for another shape, or a value that does not fit.
  RowIdsArgument(nb::handle row_ids, const LayerColumns& layer, Device device);

  const RowIds& ids() const { return ids_; }

  /// The array as it was given: says in which library and where the answer belongs.
  const Array& given() const { return given_; }

  /// Whatever keeps ids() readable.
  nb::object keep_alive() const;

 private:
  Array given_;
  std::optional<Array> array_;
  std::optional<Integers<std::int32_t>> integers_;
  RowIds ids_;
};

}  // namespace penstock::python
