#include "arrays.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "penstock/core/error.hpp"

namespace penstock::python {
namespace {

[[noreturn]] void refuse(const char* name, const std::string& found, std::string_view needs) {
  throw Error(ErrorCode::InvalidArgument,
              std::string(name) + ": found " + found + ", needs " + std::string(needs));
}

// What Python's str() says.
std::string text_of(nb::handle object) {
  const auto text = nb::steal<nb::str>(PyObject_Str(object.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  return text.c_str();
}

std::string type_text(nb::handle object) {
  return nb::type_name(object.type()).c_str();
}

// Names that are looked up once. Leaked on purpose: at exit the interpreter may be gone first.
struct NumpyNames {
  nb::object array_type;
  nb::object asarray;
  nb::object ascontiguousarray;
  nb::object empty;
  nb::object uint16;
  nb::object int32;
};

const NumpyNames& numpy() {
  static const NumpyNames* names = [] {
    const nb::module_ np = nb::module_::import_("numpy");
    return new NumpyNames{np.attr("ndarray"),           np.attr("asarray"),
                          np.attr("ascontiguousarray"), np.attr("empty"),
                          np.attr("dtype")("uint16"),   np.attr("dtype")("int32")};
  }();
  return *names;
}

// What a torch dtype is to us.
struct TorchDType {
  PyObject* dtype = nullptr;
  Element element = Element::Other;
  int bits = 0;
  bool is_signed = false;
};

std::vector<TorchDType> torch_dtypes(nb::handle torch) {
  struct Named {
    const char* name;
    Element element;
    int bits;
    bool is_signed;
  };
  constexpr std::array<Named, 12> known{{{"int32", Element::Integer, 32, true},
                                         {"bfloat16", Element::BF16, 16, true},
                                         {"int64", Element::Integer, 64, true},
                                         {"bool", Element::Bool, 8, false},
                                         {"uint8", Element::Integer, 8, false},
                                         {"int8", Element::Integer, 8, true},
                                         {"int16", Element::Integer, 16, true},
                                         {"uint16", Element::Integer, 16, false},
                                         {"uint32", Element::Integer, 32, false},
                                         {"uint64", Element::Integer, 64, false},
                                         {"float8_e4m3fn", Element::Byte, 8, true},
                                         {"float8_e8m0fnu", Element::Byte, 8, true}}};
  std::vector<TorchDType> out;
  for (const Named& named : known) {
    if (!nb::hasattr(torch, named.name)) continue;  // an older torch
    nb::object dtype = torch.attr(named.name);
    out.push_back({dtype.release().ptr(), named.element, named.bits, named.is_signed});
  }
  return out;
}

nb::object interned(const char* name) {
  return nb::steal(PyUnicode_InternFromString(name));
}

struct TorchNames {
  nb::object module;
  PyTypeObject* tensor_type;
  nb::object empty;
  nb::object bfloat16;
  nb::object int32;
  std::vector<TorchDType> dtypes;
  // Attributes of tensors that every call reads; made once, since that is half of their cost.
  nb::object dtype = interned("dtype");
  nb::object data_ptr = interned("data_ptr");
  nb::object shape = interned("shape");
  nb::object stride = interned("stride");
  nb::object is_cuda = interned("is_cuda");
  nb::object is_cpu = interned("is_cpu");
  nb::object device = interned("device");
};

// torch, if somebody has imported it; who holds a tensor has.
const TorchNames* imported_torch() {
  static const TorchNames* names = nullptr;
  if (names != nullptr) return names;
  PyObject* found = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (found == nullptr) return nullptr;
  const nb::object torch = nb::borrow(found);
  // While torch is being imported, or where something else has its name, there are no tensors.
  for (const char* name : {"Tensor", "empty", "bfloat16", "int32"}) {
    if (!nb::hasattr(torch, name)) return nullptr;
  }
  nb::object tensor_type = torch.attr("Tensor");
  names = new TorchNames{torch,
                         reinterpret_cast<PyTypeObject*>(tensor_type.release().ptr()),
                         torch.attr("empty"),
                         torch.attr("bfloat16"),
                         torch.attr("int32"),
                         torch_dtypes(torch)};
  return names;
}

bool is_torch_tensor(nb::handle object) {
  const TorchNames* torch = imported_torch();
  return torch != nullptr && PyObject_TypeCheck(object.ptr(), torch->tensor_type) != 0;
}

bool is_numpy_array(nb::handle object) {
  return PyObject_TypeCheck(object.ptr(),
                            reinterpret_cast<PyTypeObject*>(numpy().array_type.ptr())) != 0;
}

// The dtypes of other packages that numpy cannot export, by name, and the plain integers that it can.
struct BitView {
  Element element = Element::Other;
  const char* integer = nullptr;
};

BitView bit_view(std::string_view dtype) {
  if (dtype == "bfloat16") return {Element::BF16, "uint16"};
  if (dtype == "float8_e4m3fn" || dtype == "float8_e8m0fnu") return {Element::Byte, "uint8"};
  return {};
}

std::vector<std::int64_t> integers_of(nb::handle tuple) {
  std::vector<std::int64_t> out;
  out.reserve(nb::len(tuple));
  for (const nb::handle item : nb::borrow<nb::tuple>(tuple)) {
    out.push_back(nb::cast<std::int64_t>(item));
  }
  return out;
}

nb::object call_method(nb::handle object, nb::handle name) {
  PyObject* answer = PyObject_CallMethodNoArgs(object.ptr(), name.ptr());
  if (answer == nullptr) throw nb::python_error();
  return nb::steal(answer);
}

}  // namespace

void prepare_arrays() {
  numpy();
}

Array::Array(nb::handle object, const char* name) : name_(name) {
  if (is_torch_tensor(object)) library_ = Library::Torch;
  const bool is_sequence = PyList_Check(object.ptr()) != 0 || PyTuple_Check(object.ptr()) != 0;
  if (library_ == Library::Numpy && !is_sequence && !is_numpy_array(object)) {
    refuse(name, type_text(object), "a numpy array or a torch tensor");
  }
  import(is_sequence ? numpy().asarray(object) : nb::borrow(object));
}

void Array::import(nb::handle object) {
  object_ = nb::borrow(object);
  const std::vector<std::int64_t> strides =
      library_ == Library::Torch ? import_torch() : import_numpy();
  std::int64_t inner = 1;
  bool is_dense = true;
  for (std::size_t i = shape_.size(); i-- > 1;) {
    is_dense = is_dense && (shape_[i] == 1 || strides[i] == inner);
    inner *= shape_[i];
  }
  row_stride_ = shape_.empty() || shape_[0] <= 1 ? inner : strides[0];
  // Rows that overlap or run backwards are nothing that a reader of rows expects.
  if (size() != 0 && (!is_dense || row_stride_ < inner)) return import(dense_copy());
  if (size() == 0) row_stride_ = inner;
}

nb::object Array::dense_copy() const {
  return library_ == Library::Numpy ? numpy().ascontiguousarray(object_)
                                    : object_.attr("contiguous")();
}

std::vector<std::int64_t> Array::import_numpy() {
  BitView special;
  if (!nb::try_cast<nb::ndarray<nb::ro>>(object_, view_, false)) {
    const nb::object dtype = object_.attr("dtype");
    special = bit_view(text_of(dtype));
    if (special.integer == nullptr) {
      refuse(name_, "an array of dtype " + text_of(dtype),
             "an array with plain memory and a native dtype");
    }
    object_ = object_.attr("view")(special.integer);
    if (!nb::try_cast<nb::ndarray<nb::ro>>(object_, view_, false)) {
      refuse(name_, "an array that DLPack cannot carry", "an array with plain memory");
    }
  }
  const nb::dlpack::dtype dtype = view_.dtype();
  bits_ = dtype.bits;
  is_signed_ = dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int);
  if (special.element != Element::Other) {
    element_ = special.element;
  } else if (is_signed_ || dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt)) {
    element_ = Element::Integer;
  } else if (dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bool)) {
    element_ = Element::Bool;
  } else {
    element_ = Element::Other;
  }
  data_ = static_cast<const std::byte*>(view_.data());
  shape_.clear();
  std::vector<std::int64_t> strides;
  for (std::size_t i = 0; i < view_.ndim(); ++i) {
    shape_.push_back(static_cast<std::int64_t>(view_.shape(i)));
    strides.push_back(view_.stride(i));
  }
  return strides;
}

// Not by DLPack: torch orders that on the legacy stream, which a graph under capture forbids.
std::vector<std::int64_t> Array::import_torch() {
  const TorchNames& torch = *imported_torch();
  element_ = Element::Other;
  bits_ = 0;
  const nb::object dtype = object_.attr(torch.dtype);
  for (const TorchDType& known : torch.dtypes) {
    if (known.dtype != dtype.ptr()) continue;
    element_ = known.element;
    bits_ = known.bits;
    is_signed_ = known.is_signed;
    break;
  }
  try {
    data_ = reinterpret_cast<const std::byte*>(
        nb::cast<std::uintptr_t>(call_method(object_, torch.data_ptr)));
    shape_ = integers_of(object_.attr(torch.shape));
    if (nb::cast<bool>(object_.attr(torch.is_cuda))) {
      device_ = Device::cuda(nb::cast<int>(object_.attr("get_device")()));
    } else if (nb::cast<bool>(object_.attr(torch.is_cpu))) {
      device_ = Device::cpu();
    } else {
      refuse(name_, "a tensor on " + text_of(object_.attr(torch.device)), "host or CUDA memory");
    }
    return integers_of(call_method(object_, torch.stride));
  } catch (const nb::python_error& error) {
    refuse(name_, std::string("a tensor without plain memory: ") + error.what(),
           "a dense tensor on the CPU or a CUDA device");
  }
}

std::int64_t Array::size() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape_) product *= extent;
  return product;
}

bool Array::is_contiguous() const {
  return shape_.empty() || shape_[0] <= 1 || row_stride_ * shape_[0] == size();
}

std::string Array::shape_text() const {
  std::string text = "[";
  for (std::size_t i = 0; i < shape_.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape_[i]);
  }
  return text + "]";
}

std::string Array::element_text() const {
  return text_of(object_.attr("dtype"));
}

Array Array::contiguous() const {
  if (is_contiguous()) return *this;
  Array copy = *this;
  copy.import(dense_copy());
  return copy;
}

Array Array::on_cpu() const {
  if (device_ == Device::cpu()) return *this;
  Array copy = *this;
  copy.import(object_.attr("cpu")());
  return copy;
}

void Array::expect_shape(std::initializer_list<std::int64_t> shape) const {
  bool fits = shape.size() == shape_.size();
  std::string needs;
  auto mine = shape_.begin();
  for (const std::int64_t extent : shape) {
    needs += (needs.empty() ? "" : ", ") + (extent < 0 ? "any" : std::to_string(extent));
    fits = fits && (extent < 0 || extent == *mine);
    if (mine != shape_.end()) ++mine;
  }
  if (!fits) refuse(name_, "shape " + shape_text(), "[" + needs + "]");
}

void Array::expect_device(Device device) const {
  if (device_ == device) return;
  refuse(name_, "an array on " + to_string(device_),
         "one on " + to_string(device) + ", like the first");
}

std::span<const BF16> Array::bf16() const {
  const bool is_bits =
      library_ == Library::Numpy && element_ == Element::Integer && bits_ == 16 && !is_signed_;
  if (element_ != Element::BF16 && !is_bits) {
    refuse(name_, element_text(), "bfloat16, or its bits as uint16 in numpy");
  }
  if (!is_contiguous()) throw Error(ErrorCode::Internal, "bf16: rows are strided");
  return {reinterpret_cast<const BF16*>(data_), static_cast<std::size_t>(size())};
}

std::span<const std::byte> Array::bytes() const {
  const bool is_plain = element_ == Element::Integer && bits_ == 8 && !is_signed_;
  if (element_ != Element::Byte && !is_plain) {
    refuse(name_, element_text(), "uint8 bits or an 8-bit float");
  }
  if (!is_contiguous()) throw Error(ErrorCode::Internal, "bytes: rows are strided");
  return {data_, static_cast<std::size_t>(size())};
}

std::span<const std::uint8_t> Array::flags() const {
  const bool is_plain = element_ == Element::Integer && bits_ == 8 && !is_signed_;
  if (element_ != Element::Bool && !is_plain) refuse(name_, element_text(), "bool");
  if (!is_contiguous()) throw Error(ErrorCode::Internal, "flags: rows are strided");
  return {reinterpret_cast<const std::uint8_t*>(data_), static_cast<std::size_t>(size())};
}

StreamRef Array::stream() const {
  if (device_.kind != DeviceKind::Cuda || library_ != Library::Torch) return {};
  const nb::object stream =
      imported_torch()->module.attr("cuda").attr("current_stream")(object_.attr("device"));
  const auto address = nb::cast<std::uintptr_t>(stream.attr("cuda_stream"));
  return StreamRef(reinterpret_cast<CUstream_st*>(address));
}

// ---- Integers ------------------------------------------------------------------------------

namespace {

template <typename T, typename From>
void convert(const Array& array, std::vector<T>& out) {
  const auto* values = reinterpret_cast<const From*>(array.data());
  for (std::int64_t i = 0; i < array.size(); ++i) {
    if (!std::in_range<T>(values[i])) {
      refuse(array.name(), "the value " + std::to_string(values[i]),
             "values that fit int" + std::to_string(8 * sizeof(T)));
    }
    out.push_back(static_cast<T>(values[i]));
  }
}

void expect_integers(const Array& array) {
  if (array.element() != Element::Integer) refuse(array.name(), array.element_text(), "integers");
}

}  // namespace

template <typename T>
Integers<T>::Integers(const Array& array) : array_(array.on_cpu().contiguous()) {
  expect_integers(array_);
  if (array_.is_signed() && array_.bits() == 8 * static_cast<int>(sizeof(T))) {
    values_ = {reinterpret_cast<const T*>(array_.data()), static_cast<std::size_t>(array_.size())};
    return;
  }
  converted_.reserve(static_cast<std::size_t>(array_.size()));
  switch (array_.is_signed() ? array_.bits() : -array_.bits()) {
    case 8: convert<T, std::int8_t>(array_, converted_); break;
    case 16: convert<T, std::int16_t>(array_, converted_); break;
    case 32: convert<T, std::int32_t>(array_, converted_); break;
    case 64: convert<T, std::int64_t>(array_, converted_); break;
    case -8: convert<T, std::uint8_t>(array_, converted_); break;
    case -16: convert<T, std::uint16_t>(array_, converted_); break;
    case -32: convert<T, std::uint32_t>(array_, converted_); break;
    case -64: convert<T, std::uint64_t>(array_, converted_); break;
    default: refuse(array_.name(), array_.element_text(), "integers of 8 to 64 bits");
  }
  values_ = converted_;
}
template class Integers<std::int32_t>;
template class Integers<std::int64_t>;

namespace {

Array integers_on_device(const Array& array, int bits) {
  expect_integers(array);
  if (array.is_signed() && array.bits() == bits) return array;
  const nb::object type = imported_torch()->module.attr(bits == 32 ? "int32" : "int64");
  const nb::object converted = array.object().attr("to")(type);
  if (array.bits() >= bits) {
    const nb::object is_equal = converted.attr("eq")(array.object()).attr("all")().attr("item")();
    if (!nb::cast<bool>(is_equal)) {
      refuse(array.name(), "a value that is too wide",
             "values that fit int" + std::to_string(bits));
    }
  }
  return {converted, array.name()};
}

}  // namespace

Array int32_on_device(const Array& array) {
  return integers_on_device(array, 32);
}

Array int64_on_device(const Array& array) {
  return integers_on_device(array, 64);
}

// ---- Output --------------------------------------------------------------------------------

Output::Output(const Array& like, std::span<const std::int64_t> shape, Type type) {
  make(like, shape, type);
}

Output Output::on_cpu(const Array& like, std::span<const std::int64_t> shape, Type type) {
  Output out;
  out.is_on_cpu_ = true;
  out.make(like, shape, type);
  if (like.device() != Device::cpu()) out.final_device_ = like.object().attr("device");
  return out;
}

void Output::make(const Array& like, std::span<const std::int64_t> shape, Type type) {
  nb::object extents = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  size_ = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    PyTuple_SET_ITEM(extents.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
    size_ *= shape[i];
  }
  if (like.library() == Library::Numpy) {
    object_ = numpy().empty(extents, type == Type::BF16 ? numpy().uint16 : numpy().int32);
    Py_buffer buffer;
    if (PyObject_GetBuffer(object_.ptr(), &buffer, PyBUF_WRITABLE) != 0) throw nb::python_error();
    data_ = static_cast<std::byte*>(buffer.buf);
    PyBuffer_Release(&buffer);
    return;
  }
  const TorchNames& torch = *imported_torch();
  const nb::object& dtype = type == Type::BF16 ? torch.bfloat16 : torch.int32;
  if (is_on_cpu_ && like.device() != Device::cpu()) {
    object_ = torch.empty(extents, nb::arg("dtype") = dtype, nb::arg("device") = "cpu");
  } else {
    object_ = like.object().attr("new_empty")(extents, nb::arg("dtype") = dtype);
  }
  data_ =
      reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(call_method(object_, torch.data_ptr)));
}

std::span<BF16> Output::bf16() const {
  return {reinterpret_cast<BF16*>(data_), static_cast<std::size_t>(size_)};
}

std::span<std::int32_t> Output::int32() const {
  return {reinterpret_cast<std::int32_t*>(data_), static_cast<std::size_t>(size_)};
}

nb::object Output::release() {
  if (final_device_.is_valid()) return object_.attr("to")(final_device_);
  return std::move(object_);
}

}  // namespace penstock::python
