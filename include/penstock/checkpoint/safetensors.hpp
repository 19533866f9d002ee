#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/core/dtype.hpp"

namespace penstock {

/// One entry of a safetensors header.
struct TensorInfo {
  std::string name;
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  ///< Byte offset of the first element from the end of the header.
  std::uint64_t bytes = 0;

  std::int64_t num_elements() const;
};

/// A safetensors file, memory-mapped read-only.
///
/// Refuses what the format forbids: a header over 100 MB or outside the file, bad JSON, duplicate
/// names, unknown dtypes, negative or overflowing sizes, dtype x shape != bytes, overlaps, holes,
/// and bytes after the last tensor.
/// Threads: const members are safe from any thread.
class SafetensorsFile {
 public:
  /// Errors: NotFound, CorruptFile, System; the message names the file.
  static SafetensorsFile open(const std::filesystem::path& file);

  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::filesystem::path& path() const;

  /// In the order of their bytes.
  std::span<const TensorInfo> tensors() const;

  /// The header's `__metadata__`; empty if it has none.
  const std::map<std::string, std::string>& metadata() const;

  /// Null if there is no such tensor.
  const TensorInfo* find(std::string_view name) const;

  /// The tensor's bytes inside the mapping; valid while this object lives. First touches read disk.
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;

 private:
  struct State;
  explicit SafetensorsFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Parses a header and checks it against the size of the data that follows it.
///
/// Shapes: `header` is the JSON text; `data_bytes` is what the file holds after it.
/// Errors: CorruptFile; the message starts with `source`.
std::vector<TensorInfo> parse_safetensors_header(std::string_view header, std::uint64_t data_bytes,
                                                 std::string_view source,
                                                 std::map<std::string, std::string>* metadata);

/// Writes one safetensors file whose tensors are streamed: the header is fixed first, then every
/// tensor's bytes are appended in the declared order. Never holds a tensor in memory.
class SafetensorsWriter {
 public:
  /// `begin` and `bytes` of `tensors` are computed here. The file appears under its name only after
  /// finish(); before that it is a temporary file beside it, removed if finish() is never reached.
  ///
  /// Errors: InvalidArgument for duplicate names; System if the file cannot be written.
  SafetensorsWriter(const std::filesystem::path& file, std::vector<TensorInfo> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Appends bytes of the current tensor; moves on when it is complete.
  void append(std::span<const std::byte> bytes);

  /// Leaves `bytes` zero bytes without writing them: the file has a hole there.
  void append_hole(std::uint64_t bytes);

  /// Errors: InvalidArgument if bytes are missing; System.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock
