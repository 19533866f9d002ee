#include <cstdint>

#include "fuzz/fuzz_input.hpp"
#include "penstock/checkpoint/token_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  static const fuzz::MemoryFile file;
  file.write(fuzz::text_of(data, size));
  fuzz::read_hostile(file.path(), [&] {
    const TokenFile tokens = load_token_file(file.path());
    fuzz::check(!tokens.requests.empty(), "no request");
    for (const auto& request : tokens.requests) {
      fuzz::check(!request.empty(), "an empty request");
      for (const std::int32_t id : request) fuzz::check(id >= 0, "a negative token id");
    }
  });
  return 0;
}
