#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "checkpoint/strict_json.hpp"
#include "checkpoint/tensor_bytes.hpp"
#include "penstock/checkpoint/safetensors.hpp"

namespace penstock {
namespace {

using detail::in_quotes;
using detail::printable;
using detail::throw_corrupt;

constexpr std::uint64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

/// One tensor's entry, with what its error messages need.
struct Entry {
  std::string_view source;
  const std::string& name;
  const nlohmann::json& value;

  [[noreturn]] void refuse(std::string_view message) const {
    throw_corrupt(source, fmt::format("tensor {}: {}", in_quotes(name), message));
  }

  const nlohmann::json& at(const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) refuse(fmt::format("no \"{}\"", key));
    return *found;
  }

  std::uint64_t unsigned_number(const char* key, const nlohmann::json& number) const {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() > kMaxInt64) {
      refuse(fmt::format("{} holds {}, needed: whole numbers from 0 to 2^63 - 1", key,
                         printable(number)));
    }
    return number.get<std::uint64_t>();
  }
};

DType dtype_of(const Entry& entry) {
  const nlohmann::json& name = entry.at("dtype");
  const auto dtype =
      name.is_string() ? parse_dtype(name.get_ref<const std::string&>()) : std::nullopt;
  if (!dtype) {
    entry.refuse(fmt::format("dtype is {}, needed: one that safetensors knows", printable(name)));
  }
  return *dtype;
}

std::vector<std::int64_t> shape_of(const Entry& entry) {
  const nlohmann::json& shape = entry.at("shape");
  if (!shape.is_array()) entry.refuse(fmt::format("shape is {}, needed: a list", printable(shape)));
  std::vector<std::int64_t> sizes;
  for (const nlohmann::json& size : shape) {
    sizes.push_back(static_cast<std::int64_t>(entry.unsigned_number("shape", size)));
  }
  return sizes;
}

TensorInfo parse_entry(const Entry& entry) {
  if (!entry.value.is_object()) {
    entry.refuse(fmt::format("is {}, needed: an object", printable(entry.value)));
  }
  TensorInfo info{.name = entry.name, .dtype = dtype_of(entry), .shape = shape_of(entry)};
  const nlohmann::json& offsets = entry.at("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) {
    entry.refuse(fmt::format("data_offsets is {}, needed: [begin, end]", printable(offsets)));
  }
  info.begin = entry.unsigned_number("data_offsets", offsets[0]);
  const std::uint64_t end = entry.unsigned_number("data_offsets", offsets[1]);
  if (end < info.begin)
    entry.refuse(fmt::format("data_offsets [{}, {}] run backwards", info.begin, end));
  info.bytes = end - info.begin;
  const auto needed = detail::tensor_bytes(info.dtype, info.shape);
  if (needed != info.bytes) {
    entry.refuse(fmt::format("data_offsets span {} bytes, needed: {} for {} [{}]", info.bytes,
                             needed ? std::to_string(*needed) : "whole bytes below 2^61",
                             to_string(info.dtype), fmt::join(info.shape, ", ")));
  }
  return info;
}

std::map<std::string, std::string> parse_metadata(const nlohmann::json& value,
                                                  std::string_view source) {
  if (!value.is_object()) throw_corrupt(source, "__metadata__ is not an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      throw_corrupt(source, fmt::format("__metadata__ {} is {}, needed: a string", in_quotes(key),
                                        printable(text)));
    }
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

/// Every byte of the data belongs to exactly one tensor.
void check_cover(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes,
                 std::string_view source) {
  std::uint64_t end = 0;
  for (const auto& tensor : tensors) {
    if (tensor.begin != end) {
      throw_corrupt(source, fmt::format("tensor {} begins at byte {}, needed: {}, where the one "
                                        "before it ends",
                                        in_quotes(tensor.name), tensor.begin, end));
    }
    end += tensor.bytes;  // both at most 2^63 - 1, and checked against data_bytes next
    if (end > data_bytes) {
      throw_corrupt(source,
                    fmt::format("tensor {} ends at byte {}, but only {} bytes of data follow "
                                "the header",
                                in_quotes(tensor.name), end, data_bytes));
    }
  }
  if (end != data_bytes) {
    throw_corrupt(source, fmt::format("{} bytes of data follow the header, but the tensors cover "
                                      "only {}",
                                      data_bytes, end));
  }
}

}  // namespace

std::int64_t TensorInfo::num_elements() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size == 0) return 0;
  }
  for (const std::int64_t size : shape) count *= size;
  return count;
}

std::vector<TensorInfo> parse_safetensors_header(std::string_view header, std::uint64_t data_bytes,
                                                 std::string_view source,
                                                 std::map<std::string, std::string>* metadata) {
  if (!header.starts_with('{')) throw_corrupt(source, "the header does not begin with '{'");
  const nlohmann::json entries = detail::parse_strict_json(header, source);
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> found_metadata;
  for (const auto& [name, value] : entries.items()) {
    if (name == "__metadata__") {
      found_metadata = parse_metadata(value, source);
    } else {
      tensors.push_back(parse_entry({source, name, value}));
    }
  }
  // Empty tensors first where they share their place with a full one.
  std::ranges::sort(tensors, {}, [](const TensorInfo& tensor) {
    return std::tuple(tensor.begin, tensor.bytes, std::string_view(tensor.name));
  });
  check_cover(tensors, data_bytes, source);
  if (metadata != nullptr) *metadata = std::move(found_metadata);
  return tensors;
}

}  // namespace penstock
