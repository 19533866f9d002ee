#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "gate/agreement.hpp"
#include "gate/peer_rows.hpp"
#include "gate/process_token.hpp"
#include "penstock/core/buffer.hpp"
#include "penstock/core/device.hpp"
#include "penstock/core/error.hpp"
#include "penstock/core/parallel.hpp"

namespace penstock::detail {
namespace {

using SharedBuffer = std::shared_ptr<const Buffer>;
SharedBuffer make_buffer(const WeightSlice& slice) {
  const auto bytes = static_cast<std::size_t>(slice.elements()) * sizeof(BF16);
  auto buffer = std::make_shared<Buffer>(Buffer::allocate(Device::cpu(), bytes));
  BF16* to = buffer->as<BF16>().data();
  parallel_for(slice.rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::copy_n(slice.data + row * slice.stride, slice.columns, to + row * slice.columns);
    }
  });
  return buffer;
}

class LocalRows final : public PeerRows {
 public:
  /// `slices` of all ranks, or this rank's alone.
  LocalRows(std::vector<SharedBuffer> slices, std::size_t rank)
      : slices_(std::move(slices)),
        rank_(rank) {}

  std::span<const BF16> own() const override { return slices_[rank_]->as<BF16>(); }
  std::size_t resident_bytes() const override { return slices_[rank_]->bytes(); }
  bool are_readable() const override { return slices_.size() > 1; }
  const BF16* of(int rank) const override {
    return slices_[static_cast<std::size_t>(rank)]->as<BF16>().data();
  }

 private:
  std::vector<SharedBuffer> slices_;  ///< Shared with the other ranks of this process.
  std::size_t rank_;
};

/// What a rank tells the others: a process, and where in it its slice's owner is.
struct Introduction {
  std::uint64_t process = 0;
  const SharedBuffer* slice = nullptr;
};

std::vector<Introduction> introduce(Communicator& comm, const SharedBuffer& slice) {
  const Introduction mine{process_token(), &slice};
  std::array<std::byte, sizeof(Introduction)> bytes{};
  std::memcpy(bytes.data(), &mine, sizeof(mine));
  std::vector<Introduction> all;
  for (const auto& other : comm.all_gather_object(bytes)) {
    Introduction introduction;
    if (other.size() != sizeof(introduction)) {
      throw Error(ErrorCode::Internal, "GateLinear: ranks of different builds");
    }
    std::memcpy(&introduction, other.data(), sizeof(introduction));
    all.push_back(introduction);
  }
  return all;
}

}  // namespace

std::unique_ptr<PeerRows> keep_rows_cpu(const WeightSlice& slice) {
  return std::make_unique<LocalRows>(std::vector{make_buffer(slice)}, 0);
}

std::unique_ptr<PeerRows> share_rows_cpu(Communicator* comm, const WeightSlice& slice) {
  SharedBuffer mine;
  agree(comm, "GateLinear", [&]() -> AgreedFields {
    mine = make_buffer(slice);
    return {};
  });
  if (comm == nullptr || comm->size() == 1) {
    return std::make_unique<LocalRows>(std::vector{mine}, 0);
  }
  const auto introductions = introduce(*comm, mine);
  std::vector<SharedBuffer> slices;
  bool is_one_process = true;
  for (const Introduction& other : introductions) {
    is_one_process = is_one_process && other.process == process_token();
  }
  if (is_one_process) {
    for (const Introduction& other : introductions) slices.push_back(*other.slice);
  }
  comm->barrier();  // `mine` is read by the others until here
  if (!is_one_process) return std::make_unique<LocalRows>(std::vector{mine}, 0);
  return std::make_unique<LocalRows>(std::move(slices), static_cast<std::size_t>(comm->rank()));
}

}  // namespace penstock::detail
