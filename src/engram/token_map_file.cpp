#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "checkpoint/mapped_file.hpp"
#include "checkpoint/output_file.hpp"
#include "core/sha256.hpp"
#include "penstock/core/error.hpp"
#include "penstock/engram/token_map.hpp"

// The file of a token map, byte by byte: docs/formats/token_map.md.
namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t reserved;
  std::uint64_t num_tokens;
  std::uint64_t provenance_bytes;
  Sha256::Digest digest;
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

constexpr std::array<char, 8> kMagic{'P', 'E', 'N', 'S', 'T', 'M', 'A', 'P'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMaxProvenanceBytes = 4096;
constexpr std::size_t kDigestOffset = 32;

/// Of everything but the digest itself.
Sha256::Digest digest_of(const Header& header, std::span<const std::byte> body) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(&header, 1)).first(kDigestOffset));
  hash.update(body);
  return hash.finish();
}

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& message) {
  throw Error(ErrorCode::CorruptFile, fmt::format("{}: {}", file.string(), message));
}

Header checked_header(const std::filesystem::path& file, std::span<const std::byte> bytes) {
  Header header{};
  if (bytes.size() < sizeof(header)) {
    refuse(file, fmt::format("has {} bytes, needed: a token map of at least {}", bytes.size(),
                             sizeof(header)));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic) refuse(file, "does not begin with PENSTMAP, as token maps do");
  if (header.version != kVersion || header.reserved != 0) {
    refuse(file, fmt::format("has format version {}.{}, needed: {}.0", header.version,
                             header.reserved, kVersion));
  }
  if (header.num_tokens < 1 || header.num_tokens > kMaxTokens) {
    refuse(file, fmt::format("has {} tokens, needed: 1 to {}", header.num_tokens, kMaxTokens));
  }
  if (header.provenance_bytes > kMaxProvenanceBytes) {
    refuse(file, fmt::format("has a provenance of {} bytes, needed: at most {}",
                             header.provenance_bytes, kMaxProvenanceBytes));
  }
  const std::uint64_t needed =
      sizeof(header) + header.num_tokens * sizeof(std::int32_t) + header.provenance_bytes;
  if (bytes.size() != needed) {
    refuse(file, fmt::format("has {} bytes, needed: {}, as its header says", bytes.size(), needed));
  }
  return header;
}

}  // namespace

TokenMap TokenMap::load(const std::filesystem::path& file) {
  const detail::MappedFile mapped = detail::MappedFile::open(file);
  const Header header = checked_header(file, mapped.bytes());
  const auto body = mapped.bytes().subspan(sizeof(header));
  const Sha256::Digest found = digest_of(header, body);
  if (found != header.digest) {
    refuse(file,
           fmt::format("has the checksum {}, needed: {}", to_hex(found), to_hex(header.digest)));
  }
  std::vector<std::int32_t> ids(header.num_tokens);
  std::memcpy(ids.data(), body.data(), ids.size() * sizeof(std::int32_t));
  const auto bad = std::ranges::find_if(ids, [](std::int32_t id) {
    return id < 0 || id == std::numeric_limits<std::int32_t>::max();
  });
  if (bad != ids.end()) {
    refuse(file, fmt::format("ids[{}] is {}, needed: 0 to 2^31 - 2", bad - ids.begin(), *bad));
  }
  TokenMap map(std::move(ids));
  const auto text = body.last(header.provenance_bytes);
  map.provenance_.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return map;
}

void TokenMap::save(const std::filesystem::path& file) const {
  std::vector<std::byte> body(ids_.size() * sizeof(std::int32_t));
  std::memcpy(body.data(), ids_.data(), body.size());
  const auto text = std::as_bytes(std::span(provenance_))
                        .first(std::min<std::size_t>(provenance_.size(), kMaxProvenanceBytes));
  body.insert(body.end(), text.begin(), text.end());
  Header header{.magic = kMagic,
                .version = kVersion,
                .reserved = 0,
                .num_tokens = ids_.size(),
                .provenance_bytes = text.size(),
                .digest = {}};
  header.digest = digest_of(header, body);
  detail::OutputFile output(file);
  output.write(std::as_bytes(std::span(&header, 1)));
  output.write(body);
  output.finish();
}

}  // namespace penstock
