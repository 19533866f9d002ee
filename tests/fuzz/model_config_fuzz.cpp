#include <cstdint>
#include <exception>
#include <optional>

#include "fuzz/fuzz_input.hpp"
#include "penstock/checkpoint/model_config.hpp"
#include "penstock/engram/hash_layout.hpp"

namespace {

/// A configuration that was accepted gives a layout, or an error for numbers that do not fit.
void lay_out(const penstock::EngramConfig& engram) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  fuzz::check(engram.layer_ids.size() == engram.num_embeddings.size(), "layers and rows differ");
  fuzz::read_hostile("HashLayout", [&] {
    const HashLayout layout(engram);
    for (const auto& primes : layout.primes) {
      fuzz::check(static_cast<int>(primes.size()) == engram.num_columns(), "a column is missing");
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  fuzz::read_hostile("config", [&] {
    const ModelConfig config = parse_model_config(fuzz::text_of(data, size), "config");
    if (config.engram) lay_out(*config.engram);
    if (config.gate) fuzz::check(config.gate->output_size() > 0, "a gate without outputs");
  });
  return 0;
}
