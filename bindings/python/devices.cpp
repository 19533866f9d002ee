#include "devices.hpp"

#include <charconv>
#include <string>
#include <string_view>

#include "penstock/core/error.hpp"

namespace penstock::python {
namespace {

namespace nb = nanobind;

// The device that torch would use now; 0 for a program without torch.
Device current_cuda_device() {
  PyObject* torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  if (torch == nullptr) return Device::cuda(0);
  const nb::object cuda = nb::borrow(torch).attr("cuda");
  if (!nb::cast<bool>(cuda.attr("is_initialized")())) return Device::cuda(0);
  return Device::cuda(nb::cast<int>(cuda.attr("current_device")()));
}

}  // namespace

Device device_from(nb::handle device) {
  if (device.is_none()) return cuda_device_count() > 0 ? current_cuda_device() : Device::cpu();
  const auto shown = nb::steal<nb::str>(PyObject_Str(device.ptr()));
  if (!shown.is_valid()) throw nb::python_error();
  const std::string text = shown.c_str();
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return current_cuda_device();
  constexpr std::string_view prefix = "cuda:";
  int index = -1;
  if (text.starts_with(prefix)) {
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + prefix.size(), end, index);
    if (parsed.ptr != end) index = -1;
  }
  expects(index >= 0, "device: found \"" + text + "\", needs cpu, cuda or cuda:<index>");
  return Device::cuda(index);
}

}  // namespace penstock::python
