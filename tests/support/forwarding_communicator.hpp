#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/comm/communicator.hpp"

namespace penstock::test {

/// Passes every call on to another communicator. Tests override the calls that they look at.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(Communicator& comm) : comm_(comm) {}

  int rank() const noexcept override { return comm_.rank(); }
  int size() const noexcept override { return comm_.size(); }
  std::string_view engine() const noexcept override { return comm_.engine(); }
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out,
                  StreamRef stream) override {
    comm_.all_gather(in, out, stream);
  }
  void all_to_all(std::span<const std::byte> in, std::span<std::byte> out, std::size_t block_bytes,
                  StreamRef stream) override {
    comm_.all_to_all(in, out, block_bytes, stream);
  }
  void all_to_all_v(std::span<const std::byte> in, std::span<const std::int64_t> in_bytes,
                    std::span<std::byte> out, std::span<const std::int64_t> out_bytes,
                    StreamRef stream) override {
    comm_.all_to_all_v(in, in_bytes, out, out_bytes, stream);
  }
  void reduce_scatter(std::span<const std::byte> in, std::span<std::byte> out, DType dtype,
                      StreamRef stream) override {
    comm_.reduce_scatter(in, out, dtype, stream);
  }
  void broadcast(std::span<std::byte> data, int root, StreamRef stream) override {
    comm_.broadcast(data, root, stream);
  }
  void barrier() override { comm_.barrier(); }
  std::vector<std::vector<std::byte>> all_gather_object(std::span<const std::byte> mine) override {
    return comm_.all_gather_object(mine);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return comm_.split(color, key);
  }
  void abort(std::string_view cause) noexcept override { comm_.abort(cause); }

 private:
  Communicator& comm_;
};

}  // namespace penstock::test
