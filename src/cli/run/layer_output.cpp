#include "cli/run/layer_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/error.hpp"

namespace penstock::cli {
namespace {

template <typename T>
void append(std::vector<std::byte>& bytes, const std::vector<T>& values) {
  const auto more = std::as_bytes(std::span(values));
  bytes.insert(bytes.end(), more.begin(), more.end());
}

std::vector<std::byte> pack(const LayerOutput& output) {
  std::vector<std::byte> bytes;
  append(bytes, std::vector{static_cast<std::int64_t>(output.tokens.size())});
  append(bytes, output.tokens);
  for (const OutputPart& part : output.parts) append(bytes, part.bytes);
  return bytes;
}

/// A tensor of the whole run, filled token by token.
class RunTensor {
 public:
  RunTensor(const OutputPart& part, std::int64_t num_tokens) {
    info_.name = part.name;
    info_.dtype = part.dtype;
    info_.shape = part.token_shape;
    token_bytes_ = static_cast<std::size_t>(info_.num_elements()) *
                   static_cast<std::size_t>(element_bytes(part.dtype));
    info_.shape.insert(info_.shape.begin(), num_tokens);
    bytes_.resize(token_bytes_ * static_cast<std::size_t>(num_tokens));
  }

  /// Places the tokens of one rank and gives what follows them.
  std::span<const std::byte> place(std::span<const std::byte> from,
                                   std::span<const std::int64_t> tokens) {
    for (const std::int64_t token : tokens) {
      std::memcpy(bytes_.data() + static_cast<std::size_t>(token) * token_bytes_, from.data(),
                  token_bytes_);
      from = from.subspan(token_bytes_);
    }
    return from;
  }

  const TensorInfo& info() const { return info_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  TensorInfo info_;
  std::size_t token_bytes_ = 0;
  std::vector<std::byte> bytes_;
};

std::vector<std::int64_t> unpack_tokens(std::span<const std::byte>& part) {
  std::int64_t count = 0;
  std::memcpy(&count, part.data(), sizeof(count));
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  std::memcpy(tokens.data(), part.data() + sizeof(count), tokens.size() * sizeof(std::int64_t));
  part = part.subspan(sizeof(count) + tokens.size() * sizeof(std::int64_t));
  return tokens;
}

void expect_every_token_once(const std::vector<int>& seen, int layer_id) {
  for (std::size_t token = 0; token < seen.size(); ++token) {
    if (seen[token] == 1) continue;
    throw Error(ErrorCode::Internal, fmt::format("run: token {} of layer {} came from {} ranks",
                                                 token, layer_id, seen[token]));
  }
}

}  // namespace

void make_output_directory(Communicator& world, const std::filesystem::path& directory) {
  std::error_code error;
  if (world.rank() == 0) std::filesystem::create_directories(directory, error);
  if (error) {
    throw Error(ErrorCode::System, fmt::format("run: --out {}: {}; needed: a directory to write to",
                                               directory.string(), error.message()));
  }
  world.barrier();
}

void write_layer_output(Communicator& world, int layer_id, std::int64_t num_tokens,
                        const LayerOutput& mine, const std::filesystem::path& directory) {
  const auto packed = world.all_gather_object(pack(mine));
  if (world.rank() != 0) return;
  std::vector<RunTensor> tensors;
  for (const OutputPart& part : mine.parts) tensors.emplace_back(part, num_tokens);
  std::vector<int> seen(static_cast<std::size_t>(num_tokens));
  for (const auto& bytes : packed) {
    std::span<const std::byte> rest = bytes;
    const std::vector<std::int64_t> tokens = unpack_tokens(rest);
    for (const std::int64_t token : tokens) ++seen[static_cast<std::size_t>(token)];
    for (RunTensor& tensor : tensors) rest = tensor.place(rest, tokens);
  }
  expect_every_token_once(seen, layer_id);
  std::vector<TensorInfo> infos;
  for (const RunTensor& tensor : tensors) infos.push_back(tensor.info());
  SafetensorsWriter writer(directory / fmt::format("layer{}.safetensors", layer_id), infos);
  for (const RunTensor& tensor : tensors) writer.append(tensor.bytes());
  writer.finish();
}

}  // namespace penstock::cli
