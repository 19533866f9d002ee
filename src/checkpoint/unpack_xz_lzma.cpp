#include <fmt/format.h>
#include <lzma.h>

#include <algorithm>

#include "checkpoint/strict_json.hpp"
#include "checkpoint/text_file.hpp"
#include "penstock/core/error.hpp"

namespace penstock::detail {
namespace {

// A few kilobytes of xz can ask for any amount of either.
constexpr std::uint64_t kMaxDecoderBytes = std::uint64_t{256} << 20;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 30;
constexpr std::size_t kStepBytes = std::size_t{4} << 20;

class Decoder {
 public:
  Decoder(std::string_view packed, std::string_view source) : source_(source) {
    if (lzma_stream_decoder(&stream_, kMaxDecoderBytes, LZMA_CONCATENATED) != LZMA_OK) {
      throw Error(ErrorCode::System, fmt::format("{}: liblzma refuses to start", source_));
    }
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(packed.data());
    stream_.avail_in = packed.size();
  }
  ~Decoder() { lzma_end(&stream_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// Appends up to kStepBytes. False at the end.
  bool step(std::string& text) {
    const std::size_t before = text.size();
    text.resize(before + kStepBytes);
    stream_.next_out = reinterpret_cast<std::uint8_t*>(text.data()) + before;
    stream_.avail_out = kStepBytes;
    const lzma_ret result = lzma_code(&stream_, LZMA_FINISH);
    text.resize(text.size() - stream_.avail_out);
    if (result != LZMA_OK && result != LZMA_STREAM_END) {
      throw_corrupt(source_, fmt::format("not a whole xz file (liblzma says {} after {} bytes)",
                                         static_cast<int>(result), stream_.total_in));
    }
    return result == LZMA_OK;
  }

 private:
  std::string_view source_;
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

}  // namespace

std::string unpack_xz(std::string_view packed, std::string_view source) {
  Decoder decoder(packed, source);
  std::string text;
  while (decoder.step(text)) {
    if (text.size() > kMaxTextBytes) {
      throw_corrupt(source, fmt::format("unpacks to more than {} bytes", kMaxTextBytes));
    }
  }
  return text;
}

}  // namespace penstock::detail
