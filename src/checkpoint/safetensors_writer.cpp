#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "checkpoint/output_file.hpp"
#include "checkpoint/safetensors_limits.hpp"
#include "checkpoint/strict_json.hpp"
#include "checkpoint/tensor_bytes.hpp"
#include "penstock/checkpoint/safetensors.hpp"
#include "penstock/core/error.hpp"

namespace penstock {
namespace {

/// Places the tensors one after another.
void place(std::vector<TensorInfo>& tensors) {
  std::set<std::string_view> names;
  std::uint64_t end = 0;
  for (auto& tensor : tensors) {
    expects(
        tensor.name != "__metadata__" && names.insert(tensor.name).second,
        fmt::format("SafetensorsWriter: tensor name {} is taken", detail::in_quotes(tensor.name)));
    tensor.begin = end;
    const auto bytes = detail::tensor_bytes(tensor.dtype, tensor.shape);
    expects(bytes.has_value(),
            fmt::format("SafetensorsWriter: tensor {} is {} [{}], needed: whole bytes below 2^61",
                        detail::in_quotes(tensor.name), to_string(tensor.dtype),
                        fmt::join(tensor.shape, ", ")));
    tensor.bytes = *bytes;
    expects(tensor.bytes <= std::numeric_limits<std::int64_t>::max() - end,
            "SafetensorsWriter: the tensors together pass 2^63 bytes");
    end += tensor.bytes;
  }
}

std::string quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("SafetensorsWriter: {} is not UTF-8, needed: it is", detail::in_quotes(text)));
  }
}

/// The header, padded so that the data begin at a multiple of eight bytes.
std::string header_text(const std::vector<TensorInfo>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    entries.push_back(fmt::format("\"__metadata__\":{}", nlohmann::json(metadata).dump()));
  }
  for (const auto& tensor : tensors) {
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  quoted(tensor.name), to_string(tensor.dtype),
                                  fmt::join(tensor.shape, ","), tensor.begin,
                                  tensor.begin + tensor.bytes));
  }
  std::string text = fmt::format("{{{}}}", fmt::join(entries, ","));
  text.resize((text.size() + 7) / 8 * 8, ' ');
  expects(text.size() <= detail::kMaxHeaderBytes,
          "SafetensorsWriter: the header would be larger than 100 MB");
  return text;
}

}  // namespace

struct SafetensorsWriter::State {
  State(const std::filesystem::path& file, std::vector<TensorInfo> tensors_in)
      : tensors(std::move(tensors_in)),
        out(file) {}

  /// Accounts for bytes of the data; they may run over several tensors.
  void advance(std::uint64_t bytes) {
    const std::uint64_t total = tensors.empty() ? 0 : tensors.back().begin + tensors.back().bytes;
    expects(bytes <= total - written,
            fmt::format("SafetensorsWriter: {} bytes appended to {} of {}", bytes, written, total));
    written += bytes;
  }

  std::vector<TensorInfo> tensors;
  std::uint64_t written = 0;
  detail::OutputFile out;
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& file,
                                     std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata) {
  place(tensors);
  const std::string header = header_text(tensors, metadata);
  state_ = std::make_unique<State>(file, std::move(tensors));
  const std::uint64_t length = header.size();
  state_->out.write(std::as_bytes(std::span(&length, 1)));
  state_->out.write(header);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  state_->advance(bytes.size());
  state_->out.write(bytes);
}

void SafetensorsWriter::append_hole(std::uint64_t bytes) {
  state_->advance(bytes);
  state_->out.skip(bytes);
}

void SafetensorsWriter::finish() {
  for (const auto& tensor : state_->tensors) {
    expects(
        state_->written >= tensor.begin + tensor.bytes,
        fmt::format("SafetensorsWriter: tensor {} lacks {} bytes", detail::in_quotes(tensor.name),
                    tensor.begin + tensor.bytes - state_->written));
  }
  state_->out.finish();
}

}  // namespace penstock
