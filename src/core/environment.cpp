#include "core/environment.hpp"

#include <unistd.h>

#include <cstdlib>

namespace penstock {

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): never set by us
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::vector<std::string> environment_entries() {
  std::vector<std::string> entries;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    entries.emplace_back(*entry);
  }
  return entries;
}

}  // namespace penstock
