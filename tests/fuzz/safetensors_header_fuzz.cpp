#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "fuzz/fuzz_input.hpp"
#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/dtype.hpp"

// Two bytes with the size of the data (little-endian), then the text of a header.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  if (size < 2) return 0;
  const std::uint64_t data_bytes = data[0] | (std::uint64_t{data[1]} << 8);
  fuzz::read_hostile("header", [&] {
    std::map<std::string, std::string> metadata;
    const auto tensors = parse_safetensors_header(fuzz::text_of(data + 2, size - 2), data_bytes,
                                                  "header", &metadata);
    std::set<std::string> names;
    std::uint64_t end = 0;
    for (const auto& tensor : tensors) {
      fuzz::check(names.insert(tensor.name).second, "two tensors of one name");
      fuzz::check(tensor.begin == end, "the tensors leave a hole or overlap");
      fuzz::check(tensor.num_elements() >= 0, "a negative number of elements");
      end += tensor.bytes;
    }
    fuzz::check(end == data_bytes, "the tensors do not cover the data");
  });
  return 0;
}
