#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "penstock/core/device.hpp"
#include "penstock/core/dtype.hpp"
#include "penstock/core/stream.hpp"

// Arrays of other libraries on their way in and out. All functions need the GIL.
namespace penstock::python {

namespace nb = nanobind;

/// Libraries whose arrays results can be made in.
enum class Library { Numpy, Torch };

/// What the elements are, whatever the library calls them.
enum class Element { Bool, Integer, BF16, Byte, Other };

/// Finds numpy. Called once at import, when no other thread can be on its way here.
void prepare_arrays();

/// An array argument. Keeps the memory alive; copies nothing but what it must.
///
/// Layout: rows (index 0) may be strided; everything inside a row is contiguous.
class Array {
 public:
  /// Sequences and whatever else numpy.asarray takes become numpy arrays.
  ///
  /// Errors: InvalidArgument, naming the argument, for an array that has no plain memory.
  Array(nb::handle object, const char* name);

  const char* name() const { return name_; }
  Library library() const { return library_; }
  Device device() const { return device_; }
  Element element() const { return element_; }
  int bits() const { return bits_; }
  bool is_signed() const { return is_signed_; }
  const std::byte* data() const { return data_; }
  std::span<const std::int64_t> shape() const { return shape_; }
  std::int64_t size() const;
  std::int64_t row_stride() const { return row_stride_; }  ///< In elements.
  bool is_contiguous() const;
  nb::handle object() const { return object_; }

  /// "[3, 4]"
  std::string shape_text() const;
  /// What the library calls the element type.
  std::string element_text() const;

  /// The same elements without gaps between rows.
  Array contiguous() const;

  /// The same in host memory; for torch a copy that has arrived.
  Array on_cpu() const;

  /// Errors: InvalidArgument unless the shape is this one; -1 stands for any size.
  void expect_shape(std::initializer_list<std::int64_t> shape) const;
  /// Errors: InvalidArgument unless on `device`.
  void expect_device(Device device) const;

  /// bf16 numbers: bfloat16, or numpy's uint16. Errors: InvalidArgument for others.
  std::span<const BF16> bf16() const;

  /// Single bytes: uint8, or one of the 8-bit floats. Errors: InvalidArgument for others.
  std::span<const std::byte> bytes() const;

  /// Flags: bool or uint8. Errors: InvalidArgument for others.
  std::span<const std::uint8_t> flags() const;

  /// The library's current stream; CUDA only, else the default.
  StreamRef stream() const;

 private:
  void import(nb::handle object);
  // Both read object_ and give its strides in elements.
  std::vector<std::int64_t> import_numpy();
  std::vector<std::int64_t> import_torch();
  nb::object dense_copy() const;

  const char* name_;
  nb::object object_;
  nb::ndarray<nb::ro> view_;
  Library library_ = Library::Numpy;
  Device device_;
  Element element_ = Element::Other;
  int bits_ = 0;
  bool is_signed_ = false;
  const std::byte* data_ = nullptr;
  std::vector<std::int64_t> shape_;
  std::int64_t row_stride_ = 0;
};

/// Integers of one width, in host memory.
///
/// Errors: InvalidArgument for elements that are no integers, or a value that does not fit.
template <typename T>
class Integers {
 public:
  explicit Integers(const Array& array);

  std::span<const T> values() const { return values_; }

 private:
  Array array_;
  std::vector<T> converted_;
  std::span<const T> values_;
};
extern template class Integers<std::int32_t>;
extern template class Integers<std::int64_t>;

/// Integers of 32 or 64 bits in device memory, where they stay.
///
/// Errors: InvalidArgument for elements that are no integers, or a value that does not fit.
Array int32_on_device(const Array& array);
Array int64_on_device(const Array& array);

/// A new array that a function fills and returns.
class Output {
 public:
  enum class Type { BF16, I32 };

  /// In the library and on the device of `like`.
  Output(const Array& like, std::span<const std::int64_t> shape, Type type);
  /// In host memory, to be brought to `like`'s device by release().
  static Output on_cpu(const Array& like, std::span<const std::int64_t> shape, Type type);

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  std::span<BF16> bf16() const;
  std::span<std::int32_t> int32() const;

  /// Hands the array over.
  nb::object release();

 private:
  Output() = default;
  void make(const Array& like, std::span<const std::int64_t> shape, Type type);

  nb::object object_;
  nb::object final_device_;  ///< Where release() moves the array; null: it stays.
  bool is_on_cpu_ = false;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

}  // namespace penstock::python
