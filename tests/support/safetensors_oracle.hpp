#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// A naive second reader and writer of safetensors, from the format's definition alone.
namespace penstock::test {

struct PlainTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;

  friend bool operator==(const PlainTensor&, const PlainTensor&) = default;
};

/// 8 bytes of length, the header, the data.
inline std::string safetensors_text(std::string_view header, std::string_view data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>((header.size() >> (8 * i)) & 0xFF);
  return out.append(header).append(data);
}

inline std::string write_plain_safetensors(const std::map<std::string, PlainTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = data.size();
    data += tensor.bytes;
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return safetensors_text(header.dump(), data);
}

inline std::map<std::string, PlainTensor> read_plain_safetensors(const std::string& file) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(file.at(i))) << (8 * i);
  }
  const auto header = nlohmann::json::parse(file.substr(8, length));
  std::map<std::string, PlainTensor> out;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = entry.at("data_offsets").get<std::vector<std::size_t>>();
    out[name] = {entry.at("dtype").get<std::string>(),
                 entry.at("shape").get<std::vector<std::int64_t>>(),
                 file.substr(8 + length + offsets.at(0), offsets.at(1) - offsets.at(0))};
  }
  return out;
}

}  // namespace penstock::test
