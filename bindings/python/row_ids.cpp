#include "row_ids.hpp"

#include <span>
#include <string>

#include "penstock/core/error.hpp"

namespace penstock::python {
namespace {

void expect_ids_shape(const Array& ids, const LayerColumns& layer) {
  const std::span<const std::int64_t> shape = ids.shape();
  const bool is_one_layer = shape.size() == 2 && shape[1] == layer.columns;
  const bool is_all_layers =
      shape.size() == 3 && shape[1] == layer.num_layers && shape[2] == layer.columns;
  expects(is_one_layer || is_all_layers,
          std::string(ids.name()) + ": found shape " + ids.shape_text() + ", needs [T, " +
              std::to_string(layer.columns) + "] or [T, " + std::to_string(layer.num_layers) +
              ", " + std::to_string(layer.columns) + "]");
}

}  // namespace

RowIdsArgument::RowIdsArgument(nb::handle row_ids, const LayerColumns& layer, Device device)
    : given_(row_ids, "row_ids") {
  expect_ids_shape(given_, layer);
  const bool has_all_layers = given_.shape().size() == 3;
  ids_.tokens = given_.shape()[0];
  ids_.columns = layer.columns;
  const std::int32_t* first = nullptr;
  if (device == Device::cpu()) {
    const bool is_ready = given_.device() == device && given_.element() == Element::Integer &&
                          given_.is_signed() && given_.bits() == 32;
    if (is_ready) {  // rows may be strided: a slice of a larger array is read where it lies
      first = reinterpret_cast<const std::int32_t*>(given_.data());
      ids_.token_stride = given_.row_stride();
    } else {
      integers_.emplace(given_);
      first = integers_->values().data();
      ids_.token_stride = has_all_layers ? layer.num_layers * layer.columns : layer.columns;
    }
  } else {
    given_.expect_device(device);
    array_.emplace(int32_on_device(given_));
    first = reinterpret_cast<const std::int32_t*>(array_->data());
    ids_.token_stride = array_->row_stride();
  }
  ids_.data = has_all_layers ? first + std::int64_t{layer.layer_idx} * layer.columns : first;
}

nb::object RowIdsArgument::keep_alive() const {
  return nb::borrow(array_ ? array_->object() : given_.object());
}

}  // namespace penstock::python
