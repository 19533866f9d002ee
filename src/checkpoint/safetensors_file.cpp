#include <fmt/format.h>

#include <cstring>
#include <unordered_map>
#include <utility>

#include "checkpoint/mapped_file.hpp"
#include "checkpoint/safetensors_limits.hpp"
#include "checkpoint/strict_json.hpp"
#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/error.hpp"

namespace penstock {

struct SafetensorsFile::State {
  std::filesystem::path path;
  detail::MappedFile file;
  std::span<const std::byte> data;
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::unordered_map<std::string_view, const TensorInfo*> by_name;
};

namespace {

/// Byte length of the header that follows the first eight bytes.
std::uint64_t header_bytes(std::span<const std::byte> file, std::string_view source) {
  if (file.size() < detail::kLengthBytes) {
    detail::throw_corrupt(
        source, fmt::format("{} bytes, needed: at least 8 for the header's length", file.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));  // the format is little-endian, as we are
  if (length > detail::kMaxHeaderBytes) {
    detail::throw_corrupt(source, fmt::format("the header's length is {} bytes, needed: at most {}",
                                              length, detail::kMaxHeaderBytes));
  }
  if (length > file.size() - detail::kLengthBytes) {
    detail::throw_corrupt(source, fmt::format("the header's length is {} bytes, but only {} follow",
                                              length, file.size() - detail::kLengthBytes));
  }
  return length;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& file) {
  auto state = std::make_unique<State>();
  state->path = file;
  state->file = detail::MappedFile::open(file);
  const auto bytes = state->file.bytes();
  const std::string source = file.string();
  const std::uint64_t length = header_bytes(bytes, source);
  state->data = bytes.subspan(detail::kLengthBytes + length);
  state->tensors = parse_safetensors_header(state->file.text().substr(detail::kLengthBytes, length),
                                            state->data.size(), source, &state->metadata);
  for (const auto& tensor : state->tensors) state->by_name.emplace(tensor.name, &tensor);
  return SafetensorsFile(std::move(state));
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

const std::filesystem::path& SafetensorsFile::path() const {
  return state_->path;
}

std::span<const TensorInfo> SafetensorsFile::tensors() const {
  return state_->tensors;
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return state_->metadata;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = state_->by_name.find(name);
  return found == state_->by_name.end() ? nullptr : found->second;
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  const std::uint64_t size = state_->data.size();
  expects(tensor.begin <= size && tensor.bytes <= size - tensor.begin,
          "SafetensorsFile::bytes: the tensor is of another file");
  return state_->data.subspan(tensor.begin, tensor.bytes);
}

}  // namespace penstock
