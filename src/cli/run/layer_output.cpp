#include "cli/run/layer_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
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
  append(bytes, output.row_ids);
  append(bytes, output.rows);
  append(bytes, output.hidden);
  return bytes;
}

/// A tensor of the whole run, filled token by token.
class RunTensor {
 public:
  RunTensor(std::string name, DType dtype, std::vector<std::int64_t> shape)
      : info_{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)},
        token_bytes_(static_cast<std::size_t>(info_.num_elements() /
                                              std::max<std::int64_t>(1, info_.shape[0]) *
                                              element_bytes(dtype))),
        bytes_(token_bytes_ * static_cast<std::size_t>(info_.shape[0])) {}

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
  std::size_t token_bytes_;
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

void write_layer_output(Communicator& world, const LayerOutputShape& shape, const LayerOutput& mine,
                        const std::filesystem::path& directory) {
  const auto parts = world.all_gather_object(pack(mine));
  if (world.rank() != 0) return;
  RunTensor row_ids("row_ids", DType::I32, {shape.num_tokens, shape.columns});
  RunTensor rows("rows", DType::BF16, {shape.num_tokens, shape.columns, shape.head_dim});
  RunTensor hidden("hidden", DType::BF16, {shape.num_tokens, shape.hc_mult, shape.dim});
  std::vector<int> seen(static_cast<std::size_t>(shape.num_tokens));
  for (const auto& bytes : parts) {
    std::span<const std::byte> part = bytes;
    const std::vector<std::int64_t> tokens = unpack_tokens(part);
    for (const std::int64_t token : tokens) ++seen[static_cast<std::size_t>(token)];
    part = row_ids.place(part, tokens);
    part = rows.place(part, tokens);
    hidden.place(part, tokens);
  }
  expect_every_token_once(seen, shape.layer_id);
  std::filesystem::create_directories(directory);
  SafetensorsWriter writer(directory / fmt::format("layer{}.safetensors", shape.layer_id),
                           {row_ids.info(), rows.info(), hidden.info()});
  for (const RunTensor* tensor : {&row_ids, &rows, &hidden}) writer.append(tensor->bytes());
  writer.finish();
}

}  // namespace penstock::cli
