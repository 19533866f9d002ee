#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "core/sha256.hpp"
#include "fuzz/fuzz_input.hpp"
#include "penstock/engram/token_map.hpp"

namespace {

constexpr std::size_t kDigestOffset = 32;
constexpr std::size_t kHeaderBytes = 64;

/// Makes the checksum right, without which nothing behind it would be reached.
std::string with_checksum(std::string text) {
  if (text.size() < kHeaderBytes) return text;
  const auto bytes = std::as_bytes(std::span(text));
  penstock::Sha256 hash;
  hash.update(bytes.first(kDigestOffset));
  hash.update(bytes.subspan(kHeaderBytes));
  const auto digest = hash.finish();
  std::copy_n(reinterpret_cast<const char*>(digest.data()), digest.size(),
              text.begin() + kDigestOffset);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;  // NOLINT(google-build-using-namespace)
  static const fuzz::MemoryFile file;
  file.write(with_checksum(std::string(fuzz::text_of(data, size))));
  fuzz::read_hostile(file.path(), [&] {
    const TokenMap map = TokenMap::load(file.path());
    for (const std::int32_t id : map.ids()) {
      fuzz::check(id >= 0 && id < map.size(), "a compressed id outside the map");
    }
  });
  return 0;
}
