#include <cstdint>
#include <filesystem>

#include "checkpoint/weight_index.hpp"
#include "fuzz/fuzz_input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  fuzz::read_hostile("index", [&] {
    for (const auto& [tensor, file] :
         detail::parse_weight_index(fuzz::text_of(data, size), "index")) {
      const auto path = std::filesystem::path("/model") / file;
      fuzz::check(path.lexically_normal().string().starts_with("/model/"),
                  "a file name leads out of the directory");
    }
  });
  return 0;
}
