#pragma once

#include <dlfcn.h>

#include <span>
#include <string>

#include "penstock/core/error.hpp"

namespace penstock::cuda {

/// A shared library that is opened at run time, and stays open until the process ends: its threads
/// and exit handlers may outlive every object of ours.
class DynamicLibrary {
 public:
  /// Opens the first of `names` that is there. What the process has loaded already is taken first.
  ///
  /// Errors: Unsupported with every name and what the loader said to it.
  static DynamicLibrary open(std::span<const char* const> names) {
    std::string tried;
    for (const char* name : names) {
      if (void* handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return DynamicLibrary(handle, name);
      const char* reason = ::dlerror();
      tried += (tried.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : name);
    }
    throw Error(ErrorCode::Unsupported, "DynamicLibrary: none of the libraries can be opened (" +
                                            tried +
                                            "); install it or name its folder in LD_LIBRARY_PATH");
  }

  /// Errors: Unsupported if the library lacks `symbol`.
  template <typename Function>
  Function find(const char* symbol) const {
    void* address = ::dlsym(handle_, symbol);
    if (address == nullptr) {
      throw Error(ErrorCode::Unsupported, name_ + ": has no " + symbol + "; a newer one is needed");
    }
    return reinterpret_cast<Function>(address);
  }

 private:
  DynamicLibrary(void* handle, const char* name) : handle_(handle), name_(name) {}

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace penstock::cuda
