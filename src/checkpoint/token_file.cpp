#include "penstock/checkpoint/token_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "checkpoint/mapped_file.hpp"
#include "checkpoint/safetensors_limits.hpp"
#include "checkpoint/strict_json.hpp"
#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

using detail::throw_corrupt;
using Ids = std::vector<std::int32_t>;

enum class Format { Safetensors, Json, Raw };

Format format_of_content(std::string_view text) {
  std::uint64_t header_bytes = 0;
  if (text.size() > detail::kLengthBytes && text[detail::kLengthBytes] == '{') {
    std::memcpy(&header_bytes, text.data(), sizeof(header_bytes));
    if (header_bytes <= text.size() - detail::kLengthBytes) return Format::Safetensors;
  }
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  // Every int32 below 2^24 has a zero byte, which no JSON text has.
  const bool has_zero = text.substr(0, 4096).find('\0') != std::string_view::npos;
  const bool has_bracket =
      first != std::string_view::npos && (text[first] == '[' || text[first] == '{');
  return has_bracket && !has_zero ? Format::Json : Format::Raw;
}

Format format_of(const std::filesystem::path& file, std::string_view text) {
  const auto extension = file.extension();
  if (extension == ".safetensors") return Format::Safetensors;
  if (extension == ".json") return Format::Json;
  if (extension == ".bin" || extension == ".raw") return Format::Raw;
  return format_of_content(text);
}

[[noreturn]] void refuse_id(std::string_view source, std::string_view place,
                            std::string_view value) {
  throw_corrupt(source, fmt::format("the token id at {} is {}, needed: a whole number from 0 to {}",
                                    place, value, std::numeric_limits<std::int32_t>::max()));
}

/// Copies [requests, length] ids of either width, checking each.
template <typename Integer>
std::vector<Ids> copy_ids(std::span<const std::byte> bytes, std::int64_t requests,
                          std::int64_t length, std::string_view source) {
  std::vector<Ids> result;
  const std::byte* next = bytes.data();
  for (std::int64_t request = 0; request < requests; ++request) {
    Ids& ids = result.emplace_back(static_cast<std::size_t>(length));
    for (std::int64_t i = 0; i < length; ++i, next += sizeof(Integer)) {
      Integer id = 0;  // tensors need not be aligned
      std::memcpy(&id, next, sizeof(id));
      if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) {
        refuse_id(source, fmt::format("[{}]", request * length + i), std::to_string(id));
      }
      ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(id);
    }
  }
  return result;
}

const TensorInfo& choose_tensor(const SafetensorsFile& file,
                                const std::optional<std::string>& name) {
  std::vector<std::string> names;
  for (const auto& tensor : file.tensors()) names.push_back(detail::in_quotes(tensor.name));
  const std::string source = file.path().string();
  if (names.empty()) throw_corrupt(source, "no tensors, needed: one with token ids");
  if (name) {
    const TensorInfo* found = file.find(*name);
    if (found != nullptr) return *found;
    throw Error(ErrorCode::NotFound, fmt::format("{}: no tensor {}, needed: one of {}", source,
                                                 detail::in_quotes(*name), fmt::join(names, ", ")));
  }
  if (names.size() > 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}: {} tensors and none was chosen, needed: the name of one of {}",
                            source, names.size(), fmt::join(names, ", ")));
  }
  return file.tensors().front();
}

TokenFile read_safetensors(const std::filesystem::path& path,
                           const std::optional<std::string>& name) {
  const auto file = SafetensorsFile::open(path);
  const TensorInfo& tensor = choose_tensor(file, name);
  const std::string source =
      fmt::format("{}, tensor {}", path.string(), detail::in_quotes(tensor.name));
  const bool has_ids = tensor.dtype == DType::I32 || tensor.dtype == DType::I64;
  if (!has_ids || tensor.shape.empty() || tensor.shape.size() > 2) {
    throw_corrupt(source, fmt::format("{} [{}], needed: I32 or I64 with one or two dimensions",
                                      to_string(tensor.dtype), fmt::join(tensor.shape, ", ")));
  }
  if (tensor.bytes == 0) throw_corrupt(source, "no token ids, needed: at least one");
  const std::int64_t requests = tensor.shape.size() == 2 ? tensor.shape[0] : 1;
  const auto copy = tensor.dtype == DType::I32 ? copy_ids<std::int32_t> : copy_ids<std::int64_t>;
  return {copy(file.bytes(tensor), requests, tensor.shape.back(), source), tensor.name};
}

Ids ids_of(const nlohmann::json& list, std::string_view source, std::string_view place) {
  Ids ids;
  ids.reserve(list.size());
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
      refuse_id(source, fmt::format("{}[{}]", place, ids.size()), detail::printable(id));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  if (ids.empty()) throw_corrupt(source, "a request without token ids, needed: at least one");
  return ids;
}

TokenFile read_json(std::string_view text, std::string_view source) {
  const nlohmann::json list = detail::parse_strict_json(text, source);
  if (!list.is_array() || list.empty()) {
    throw_corrupt(source, fmt::format("{}, needed: a list of token ids, or of lists of them",
                                      detail::printable(list)));
  }
  if (!list.front().is_array()) return {{ids_of(list, source, "")}, {}};
  TokenFile result;
  for (const nlohmann::json& request : list) {
    const std::string place = fmt::format("[{}]", result.requests.size());
    if (!request.is_array()) {
      throw_corrupt(source, fmt::format("{} is {}, needed: a list, as {} is one", place,
                                        detail::printable(request), "[0]"));
    }
    result.requests.push_back(ids_of(request, source, place));
  }
  return result;
}

TokenFile read_raw(std::span<const std::byte> bytes, std::string_view source) {
  if (bytes.empty() || bytes.size() % sizeof(std::int32_t) != 0) {
    throw_corrupt(source,
                  fmt::format("{} bytes, needed: a positive multiple of 4, since it is read "
                              "as raw int32",
                              bytes.size()));
  }
  const auto length = static_cast<std::int64_t>(bytes.size() / sizeof(std::int32_t));
  return {copy_ids<std::int32_t>(bytes, 1, length, source), {}};
}

}  // namespace

std::int64_t TokenFile::num_tokens() const {
  std::int64_t count = 0;
  for (const auto& request : requests) count += std::ssize(request);
  return count;
}

TokenFile load_token_file(const std::filesystem::path& file,
                          const std::optional<std::string>& tensor) {
  const auto mapped = detail::MappedFile::open(file);
  const Format format = format_of(file, mapped.text());
  if (tensor && format != Format::Safetensors) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}: not a safetensors file, so that no tensor {} can be chosen",
                            file.string(), detail::in_quotes(*tensor)));
  }
  switch (format) {
    case Format::Safetensors: return read_safetensors(file, tensor);
    case Format::Json: return read_json(mapped.text(), file.string());
    case Format::Raw: return read_raw(mapped.bytes(), file.string());
  }
  throw Error(ErrorCode::Internal, "load_token_file: not a Format");
}

}  // namespace penstock
