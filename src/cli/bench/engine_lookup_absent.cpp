#include "cli/bench/engine_lookup.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::Unsupported, "bench: built without PENSTOCK_WITH_CUDA; turn it on");
}

}  // namespace

struct SideStream::State {};

void engine_lookup(const TableView& /*table*/, const std::int32_t* /*ids*/, std::int64_t /*rows*/,
                   EngineGrid /*grid*/, std::span<BF16> /*out*/, Device /*device*/,
                   StreamRef /*stream*/) {
  refuse();
}

void copy_strided(std::byte* /*to*/, std::int64_t /*to_stride*/, const std::byte* /*from*/,
                  std::int64_t /*from_stride*/, std::int64_t /*bytes*/, std::int64_t /*count*/,
                  StreamRef /*stream*/) {
  refuse();
}

SideStream::SideStream(Device /*device*/) {
  refuse();
}
SideStream::~SideStream() = default;
void SideStream::fork(StreamRef /*stream*/) {
  refuse();
}
void SideStream::join(StreamRef /*stream*/) {
  refuse();
}
StreamRef SideStream::ref() const {
  refuse();
}

std::function<void()> capture(StreamRef /*stream*/, const std::function<void()>& /*enqueue*/) {
  refuse();
}

}  // namespace penstock::cli
