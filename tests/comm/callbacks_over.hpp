#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/comm/communicator.hpp"

namespace penstock::test {

/// Which of the optional callbacks are there.
enum class Callbacks { All, FewestPossible };

/// Callbacks that use another communicator, as a host framework's would use its process group.
inline CommCallbacks callbacks_over(std::shared_ptr<Communicator> comm, Callbacks which) {
  CommCallbacks callbacks;
  callbacks.all_gather = [comm](std::span<const std::byte> mine) {
    return comm->all_gather_object(mine);
  };
  callbacks.abort = [comm](std::string_view cause) { comm->abort(cause); };
  callbacks.split = [comm, which](const std::vector<std::vector<int>>& groups, int mine) {
    int key = 0;
    for (std::size_t i = 0; mine >= 0 && i < groups[static_cast<std::size_t>(mine)].size(); ++i) {
      if (groups[static_cast<std::size_t>(mine)][i] == comm->rank()) key = static_cast<int>(i);
    }
    std::shared_ptr<Communicator> part = comm->split(mine, key);
    return part ? callbacks_over(std::move(part), which) : CommCallbacks{};
  };
  if (which == Callbacks::FewestPossible) return callbacks;
  callbacks.barrier = [comm] { comm->barrier(); };
  callbacks.all_to_all = [comm](const std::vector<CommCallbacks::Bytes>& for_each_rank) {
    CommCallbacks::Bytes in;
    std::vector<std::int64_t> in_bytes;
    std::vector<CommCallbacks::Bytes> received;
    for (const CommCallbacks::Bytes& block : for_each_rank) {
      in.insert(in.end(), block.begin(), block.end());
      in_bytes.push_back(static_cast<std::int64_t>(block.size()));
    }
    std::vector<std::int64_t> out_bytes(in_bytes.size());
    comm->all_to_all(std::as_bytes(std::span(in_bytes)),
                     std::as_writable_bytes(std::span(out_bytes)), sizeof(std::int64_t));
    CommCallbacks::Bytes out(static_cast<std::size_t>(
        std::accumulate(out_bytes.begin(), out_bytes.end(), std::int64_t{0})));
    comm->all_to_all_v(in, in_bytes, out, out_bytes);
    auto from = out.begin();
    for (const std::int64_t bytes : out_bytes) {
      received.emplace_back(from, from + bytes);
      from += bytes;
    }
    return received;
  };
  return callbacks;
}

}  // namespace penstock::test
