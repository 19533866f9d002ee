#include <cstdint>
#include <set>

#include "checkpoint/tokenizer_json.hpp"
#include "engram/compress_vocabulary.hpp"
#include "fuzz/fuzz_input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  fuzz::read_hostile("tokenizer", [&] {
    const auto vocabulary = detail::parse_tokenizer(fuzz::text_of(data, size), "tokenizer");
    const auto ids = detail::compress_vocabulary(vocabulary.token_of_id);
    fuzz::check(ids.size() == vocabulary.token_of_id.size(), "a token has no compressed id");
  });
  return 0;
}
