#include <nanobind/nanobind.h>

#include <exception>
#include <string>

#include "bindings.hpp"
#include "penstock/core/error.hpp"

namespace penstock::python {
namespace {

// The two exception classes, defined in Python so that they can be subclassed and typed. Leaked on
// purpose: an error may be raised while the interpreter takes its modules apart.
PyObject* error_class = nullptr;
PyObject* invalid_argument_class = nullptr;

void raise(const Error& error) {
  const std::string code(to_string(error.code()));
  PyObject* cls = error.code() == ErrorCode::InvalidArgument ? invalid_argument_class : error_class;
  PyObject* instance = PyObject_CallFunction(cls, "ss", error.what(), code.c_str());
  if (instance == nullptr) return;  // then that is the exception
  PyErr_SetObject(cls, instance);
  Py_DECREF(instance);
}

}  // namespace

void bind_errors(nb::module_&) {
  const nb::module_ errors = nb::module_::import_("penstock._errors");
  error_class = nb::object(errors.attr("Error")).release().ptr();
  invalid_argument_class = nb::object(errors.attr("InvalidArgument")).release().ptr();
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      raise(error);
    }
  });
}

}  // namespace penstock::python
