#include "cli/run/process_memory.hpp"

#include <fstream>
#include <sstream>
#include <string>

namespace penstock::cli {

std::int64_t proportional_set_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kib = 0;
    if (words >> name >> kib && name == "Pss:") return kib * 1024;
  }
  return 0;
}

}  // namespace penstock::cli
