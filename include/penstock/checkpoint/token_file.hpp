#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace penstock {

/// The token ids of a file, request by request.
struct TokenFile {
  std::vector<std::vector<std::int32_t>> requests;  ///< May be of different lengths; none is empty.
  std::string tensor;                               ///< That was read; empty for other formats.

  std::int64_t num_tokens() const;
};

/// Reads token ids from one of three formats.
///
/// - safetensors: one int32 or int64 tensor; [T] is one request, [Q, T] is Q requests. `tensor`
///   chooses among several.
/// - JSON: a list of ids is one request, a list of lists one request per list.
/// - anything else: raw little-endian int32, one request.
///
/// The name decides where it ends in .safetensors, .json, .bin or .raw; else the content does.
/// Errors: NotFound for a missing file or tensor; InvalidArgument if `tensor` is needed and not
///         given, or given for another format; CorruptFile for a malformed or empty file, and for
///         an id that is negative or past int32: the message names its place and value.
TokenFile load_token_file(const std::filesystem::path& file,
                          const std::optional<std::string>& tensor = std::nullopt);

}  // namespace penstock
