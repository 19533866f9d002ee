#include <cstdint>

#include "fuzz/fuzz_input.hpp"
#include "penstock/plan/contract.hpp"
#include "penstock/plan/deployment.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  const auto text = fuzz::text_of(data, size);
  // A fuzzer must not open the files that an input makes up.
  if (text.find("model_dir") != std::string_view::npos ||
      text.find('\\') != std::string_view::npos) {
    return 0;
  }
  fuzz::read_hostile("deployment", [&] {
    for (const auto& violation : check_deployment(text, "deployment")) {
      fuzz::check(!violation.rule.empty(), "a violation without rule");
    }
  });
  return 0;
}
