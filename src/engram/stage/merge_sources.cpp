#include "engram/stage/merge_sources.hpp"

#include "core/build_config.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock::detail {

void merge_sources(std::span<const std::byte> from, int sources, std::int64_t token_bytes,
                   std::span<std::byte> to, Device device, StreamRef stream) {
  constexpr std::int64_t kWord = sizeof(std::uint64_t);
  const auto* words = reinterpret_cast<const std::uint64_t*>(from.data());
  auto* merged = reinterpret_cast<std::uint64_t*>(to.data());
  const std::int64_t count = static_cast<std::int64_t>(to.size()) / kWord;
  const std::int64_t width = token_bytes / kWord;
  if constexpr (build::has_cuda) {
    if (device.kind == DeviceKind::Cuda) {
      merge_sources_cuda(words, sources, width, merged, count, device, stream);
      return;
    }
  }
  static_cast<void>(device);
  static_cast<void>(stream);
  constexpr std::int64_t kTokensPerRange = 16;
  parallel_for(width == 0 ? 0 : count / width, kTokensPerRange,
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t token = begin; token < end; ++token) {
                   for (std::int64_t i = 0; i < width; ++i) {
                     std::uint64_t word = 0;
                     for (int source = 0; source < sources; ++source) {
                       word |= words[(token * sources + source) * width + i];
                     }
                     merged[token * width + i] = word;
                   }
                 }
               });
}

}  // namespace penstock::detail
