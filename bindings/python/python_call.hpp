#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <stdexcept>
#include <utility>

namespace penstock::python {

namespace nb = nanobind;

/// A Python function that C++ may copy, call and destroy without the GIL.
class PythonCall {
 public:
  explicit PythonCall(nb::object function)
      : function_(new nb::object(std::move(function)), [](nb::object* object) {
          const nb::gil_scoped_acquire acquire;
          delete object;
        }) {}

  /// Calls `body` with the function and the GIL. A Python exception becomes its text, since it must
  /// not travel where there is no GIL.
  template <typename Body>
  auto operator()(const Body& body) const {
    const nb::gil_scoped_acquire acquire;
    try {
      return body(*function_);
    } catch (const nb::python_error& error) {
      throw std::runtime_error(error.what());
    } catch (const nb::cast_error&) {
      throw std::runtime_error("a callback returned something of another type than it must");
    }
  }

 private:
  std::shared_ptr<nb::object> function_;
};

}  // namespace penstock::python
