#include "core/environment.hpp"

#include <cstdlib>

namespace penstock {

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): never set by us
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace penstock
